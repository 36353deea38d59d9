#pragma once
#include <algorithm>

#include "cuda_support.cuh"

namespace hat::cuda {

// Sums over the rows of a (T, N) matrix that a functor makes, in two steps with a fixed order of adding: bands of rows
// to partial sums in scratch memory, then the bands.

namespace column_sums {
inline constexpr int kColumns = 32;  // of a block: a warp reads a row's piece of 128 bytes
inline constexpr int kRowThreads = 8;
inline constexpr int64_t kMostBands = 256;

/// partial (bands, N): sums of value(t, c) over the rows of each band.
template <class Value>
__global__ void sum_bands(int64_t T, int64_t N, int64_t band_rows, Value value, float* partial) {
  auto* sums = dynamic_shared<float>();  // (kRowThreads, kColumns)
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int row_thread = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * band_rows;
  const int64_t end = min(begin + band_rows, T);
  float sum = 0;
  if (c < N) {
    for (int64_t t = begin + row_thread; t < end; t += kRowThreads) sum += value(t, c);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (row_thread != 0 || c >= N) return;
  for (int r = 1; r < kRowThreads; ++r) sum += sums[r * kColumns + static_cast<int>(threadIdx.x)];
  partial[static_cast<int64_t>(blockIdx.y) * N + c] = sum;
}

__global__ inline void add_bands(int64_t N, int64_t bands, const float* partial, float* sums) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= N) return;
  float sum = 0;
  for (int64_t band = 0; band < bands; ++band) sum += partial[band * N + c];
  sums[c] += sum;
}
}  // namespace column_sums

/// Bands that T rows are cut into.
inline int64_t bands_of(int64_t T) {
  constexpr int64_t kLeastRows = 64;
  return std::clamp<int64_t>(T / kLeastRows, 1, column_sums::kMostBands);
}

/// sums (N) += value(t, c) over the T rows. Uses column_sums_scratch bytes of the stream's scratch memory.
template <class Value>
void add_column_sums(const Stream& stream, int64_t T, int64_t N, Value value, float* sums) {
  using namespace column_sums;
  constexpr int kThreads = kColumns * kRowThreads;
  if (T == 0 || N == 0) return;
  const int64_t bands = bands_of(T);
  const int64_t band_rows = divide_up(T, bands);
  auto* partial = static_cast<float*>(stream.cuda()->scratch(static_cast<size_t>(bands * N) * sizeof(float)));
  const dim3 grid(static_cast<unsigned int>(divide_up(N, kColumns)), static_cast<unsigned int>(bands));
  launch(stream, sum_bands<Value>, grid, kThreads, kThreads * sizeof(float), T, N, band_rows, value, partial);
  launch(stream, add_bands, dim3(static_cast<unsigned int>(divide_up(N, kThreads))), kThreads, 0, N, bands, partial,
         sums);
}

}  // namespace hat::cuda
