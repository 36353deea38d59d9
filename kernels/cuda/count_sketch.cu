#include <algorithm>

#include "../sketch_hash.hpp"
#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kOwn = kSketchBuckets / kThreads;  // buckets of a thread, kThreads apart

/// A band of runs for each block; each thread adds up its own buckets, in the order of the runs.
__global__ void sketch_bands(int64_t n, int64_t band_runs, const float* x, float* sketches, double* squares) {
  auto* memory = dynamic_shared<double>();
  float sums[kOwn] = {};
  double total = 0;
  const int64_t runs = (n + kSketchBuckets - 1) / kSketchBuckets;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * band_runs;
  for (int64_t run = begin; run < min(begin + band_runs, runs); ++run) {
    const int64_t rotation = sketch_rotation(run);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int64_t bucket = own * kThreads + static_cast<int64_t>(threadIdx.x);
      const int64_t i = run * kSketchBuckets + (bucket - rotation + kSketchBuckets) % kSketchBuckets;
      if (i >= n) continue;
      const float value = x[i];
      const uint32_t sign = sketch_signs(i / kSketchWord) >> (i % kSketchWord) << 31;
      sums[own] += __uint_as_float(__float_as_uint(value) ^ sign);
      total += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  for (int own = 0; own < kOwn; ++own) {
    sketches[static_cast<int64_t>(blockIdx.x) * kSketchBuckets + own * kThreads + threadIdx.x] = sums[own];
  }
  total = block_sum<kThreads>(total, memory);
  if (threadIdx.x == 0) squares[blockIdx.x] = total;
}

__global__ void add_sketches(int64_t count, const float* sketches, const double* squares, float* sketch, double* sum) {
  const int64_t bucket = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total += sketches[i * kSketchBuckets + bucket];
  sketch[bucket] = total;
  if (bucket != 0) return;
  double all = 0;
  for (int64_t i = 0; i < count; ++i) all += squares[i];
  *sum = all;
}

}  // namespace

void count_sketch(const Stream& stream, int64_t n, const float* x, float* sketch, double* sum_of_squares) {
  constexpr int64_t kMostBlocks = 256;
  const int64_t runs = divide_up(n, kSketchBuckets);
  const int64_t blocks = std::clamp<int64_t>(runs, 1, kMostBlocks);
  const auto squares_bytes = static_cast<size_t>(blocks) * sizeof(double);
  auto* scratch = static_cast<unsigned char*>(
      stream.cuda()->scratch(squares_bytes + static_cast<size_t>(blocks * kSketchBuckets) * sizeof(float)));
  auto* squares = reinterpret_cast<double*>(scratch);
  auto* sketches = reinterpret_cast<float*>(scratch + squares_bytes);
  launch(stream, sketch_bands, dim3(static_cast<unsigned int>(blocks)), kThreads,
         kThreads / kWarpThreads * sizeof(double), n, divide_up(runs, blocks), x, sketches, squares);
  launch(stream, add_sketches, dim3(kSketchBuckets / kThreads), kThreads, 0, blocks, sketches, squares, sketch,
         sum_of_squares);
}

}  // namespace hat::cuda
