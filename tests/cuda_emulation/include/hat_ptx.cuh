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

inline constexpr bool kFewRegisters = false;

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
namespace detail {
struct Factors {
  std::array<uint32_t, 4> a;
  std::array<uint32_t, 2> b;
};
inline void spread(uint32_t pair, float* at) {
  at[0] = __uint_as_float(pair << 16);
  at[1] = __uint_as_float(pair & 0xffff0000U);
}
/// products (32 lanes, 4): a b, in d's places.
[[gnu::optimize("O3"), gnu::no_sanitize_address]] inline void multiply(const Factors* of_lanes, float* products) {
  float rows[16][16];
  float columns[8][16];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 4; ++i) spread(of_lanes[lane].a[i], &rows[g + 8 * (i % 2)][2 * t + 8 * (i / 2)]);
    for (int i = 0; i < 2; ++i) spread(of_lanes[lane].b[i], &columns[g][2 * t + 8 * i]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const float* row = rows[lane / 4 + 8 * (i / 2)];
      const float* column = columns[2 * (lane % 4) + i % 2];
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
      products[4 * lane + i] = sum;
    }
  }
}
}  // namespace detail

inline void multiply_add_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const detail::Factors mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const cuda_emulation::WarpMeeting meeting("mma.sync", 0xffffffffU, &mine, sizeof mine);
  static_assert(cuda_emulation::kMeetingFloats == 32 * 4);
  bool is_first = false;
  float* const products = meeting.together(is_first);
  if (is_first) {
    std::array<detail::Factors, 32> of_lanes;
    for (int l = 0; l < 32; ++l) {
      of_lanes[static_cast<size_t>(l)] = cuda_emulation::from_lane<detail::Factors>(meeting, l);
    }
    detail::multiply(of_lanes.data(), products);
  }
  for (int i = 0; i < 4; ++i) d[i] += products[4 * cuda_emulation::lane() + i];
}

inline float exp2_approx(float x) { return std::exp2(x); }

}  // namespace hat::cuda
