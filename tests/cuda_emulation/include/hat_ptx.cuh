#pragma once
// Stands in for kernels/cuda/ptx/hat_ptx.cuh in tests: the same functions by their definition (PTX ISA 8.5), for
// threads that are fibers (cuda_emulation.hpp).
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace hat::cuda {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(cuda_emulation::dynamic_shared());
}

namespace detail {
template <int kBytes>
void copy_async(void* shared, const void* global, bool is_inside) {
  if (reinterpret_cast<uintptr_t>(shared) % kBytes != 0 ||
      (is_inside && reinterpret_cast<uintptr_t>(global) % kBytes != 0)) {
    throw std::logic_error("cp.async needs addresses that are multiples of what it copies");
  }
  cuda_emulation::begin_copy(shared, global, kBytes, !is_inside);
}
}  // namespace detail
inline void copy_async_16(void* shared, const void* global, bool is_inside) {
  detail::copy_async<16>(shared, global, is_inside);
}
inline void copy_async_8(void* shared, const void* global, bool is_inside) {
  detail::copy_async<8>(shared, global, is_inside);
}
inline void commit_copies() { cuda_emulation::commit_copies(); }
template <int kRemaining>
void wait_copies() {
  cuda_emulation::wait_copies(kRemaining);
}

// ldmatrix: lane l gives the address of row l % 8 of matrix l / 8; of each 8 x 8 matrix, lane l gets the elements
// (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1), transposed those of the transposed matrix.
namespace detail {
template <int kMatrices>
void load_matrices(uint32_t (&registers)[kMatrices], const void* row, bool transposed) {
  const cuda_emulation::WarpMeeting meeting("ldmatrix", 0xffffffffU, &row, sizeof row);
  const int lane = cuda_emulation::lane();
  const auto element = [&](int matrix, int r, int c) {
    const auto* values = static_cast<const uint16_t*>(cuda_emulation::from_lane<const void*>(meeting, 8 * matrix + r));
    if (reinterpret_cast<uintptr_t>(values) % 16 != 0)
      throw std::logic_error("ldmatrix: a row is not aligned to 16 bytes");
    return static_cast<uint32_t>(values[c]);
  };
  for (int m = 0; m < kMatrices; ++m) {
    const int a = lane / 4;
    const int b = 2 * (lane % 4);
    registers[m] =
        transposed ? element(m, b, a) | element(m, b + 1, a) << 16 : element(m, a, b) | element(m, a, b + 1) << 16;
  }
  // What a lane reads must have been read before another changes it.
  const cuda_emulation::WarpMeeting end("ldmatrix (end)", 0xffffffffU, nullptr, 0);
}
}  // namespace detail

inline void load_matrices_4(uint32_t (&registers)[4], const void* row) {
  detail::load_matrices<4>(registers, row, false);
}
inline void load_matrices_4_transposed(uint32_t (&registers)[4], const void* row) {
  detail::load_matrices<4>(registers, row, true);
}

// mma.m16n8k16, row-major A (16, 16), column-major B (16, 8), fp32 C and D (16, 8). With g = lane / 4, t = lane % 4:
//   a[0]: (g, 2t..), a[1]: (g + 8, 2t..), a[2]: (g, 2t + 8..), a[3]: (g + 8, 2t + 8..)
//   b[0]: (2t.., g), b[1]: (2t + 8.., g)
//   d[0]: (g, 2t), d[1]: (g, 2t + 1), d[2]: (g + 8, 2t), d[3]: (g + 8, 2t + 1)
inline void multiply_add_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Given {
    std::array<uint32_t, 4> a;
    std::array<uint32_t, 2> b;
  } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const cuda_emulation::WarpMeeting meeting("mma.sync", 0xffffffffU, &mine, sizeof mine);
  // Rows g and g + 8 of a, from the lanes that have them, and columns 2t and 2t + 1 of b.
  const int g = cuda_emulation::lane() / 4;
  const int t = cuda_emulation::lane() % 4;
  std::array<std::array<float, 16>, 2> rows;
  std::array<std::array<float, 16>, 2> columns;
  const auto spread = [](uint32_t pair, float* at) {
    at[0] = __uint_as_float(pair << 16);
    at[1] = __uint_as_float(pair & 0xffff0000U);
  };
  for (int quarter = 0; quarter < 4; ++quarter) {
    const auto of_rows = cuda_emulation::from_lane<Given>(meeting, 4 * g + quarter);
    for (size_t i = 0; i < 4; ++i) spread(of_rows.a[i], rows[i % 2].data() + 8 * (i / 2) + 2 * quarter);
    for (size_t c = 0; c < 2; ++c) {
      const auto of_column = cuda_emulation::from_lane<Given>(meeting, 4 * (2 * t + static_cast<int>(c)) + quarter);
      for (size_t i = 0; i < 2; ++i) spread(of_column.b[i], columns[c].data() + 8 * i + 2 * quarter);
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    float sum = 0;
    for (size_t k = 0; k < 16; ++k) sum += rows[i / 2][k] * columns[i % 2][k];
    d[i] += sum;
  }
}

inline float exp2_approx(float x) { return std::exp2(x); }

}  // namespace hat::cuda
