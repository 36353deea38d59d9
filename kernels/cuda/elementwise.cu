#include <algorithm>

#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;

struct Fill {
  float value;
  __device__ float operator()(float) const { return value; }
};
struct Scale {
  float alpha;
  __device__ float operator()(float y) const { return alpha * y; }
};

/// Four values a thread; the vector form where y is aligned, and the end one by one.
template <class Function>
__global__ void apply(int64_t n, bool is_aligned, Function function, float* y) {
  const int64_t i = (block_number() * kThreads + threadIdx.x) * kVector;
  if (is_aligned && i + kVector <= n) {
    auto* at = reinterpret_cast<float4*>(y + i);
    float4 values = *at;
    values = make_float4(function(values.x), function(values.y), function(values.z), function(values.w));
    *at = values;
    return;
  }
  for (int64_t k = i; k < min(i + kVector, n); ++k) y[k] = function(y[k]);
}

template <class Function>
void apply_to(const Stream& stream, int64_t n, Function function, float* y) {
  if (n == 0) return;
  const bool is_aligned = reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0;
  launch(stream, apply<Function>, blocks_for(n, kThreads * kVector), kThreads, 0, n, is_aligned, function, y);
}

/// A band of elements for each block, added in double; `partial`: one sum a block.
__global__ void squares_of_bands(int64_t n, int64_t band, const float* x, double* partial) {
  auto* memory = dynamic_shared<double>();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * band;
  const int64_t end = min(begin + band, n);
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto value = static_cast<double>(x[i]);
    sum += value * value;
  }
  sum = block_sum<kThreads>(sum, memory);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_partial(int64_t count, const double* partial, double* sum) {
  auto* memory = dynamic_shared<double>();
  double total = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) total += partial[i];
  total = block_sum<kThreads>(total, memory);
  if (threadIdx.x == 0) *sum = total;
}

constexpr size_t kSumBytes = kThreads / kWarpThreads * sizeof(double);

}  // namespace

void fill(const Stream& stream, int64_t n, float value, float* y) { apply_to(stream, n, Fill{value}, y); }
void scale(const Stream& stream, int64_t n, float alpha, float* y) { apply_to(stream, n, Scale{alpha}, y); }

void sum_of_squares(const Stream& stream, int64_t n, const float* x, double* sum) {
  constexpr int64_t kLeastBand = 8 * kThreads;
  constexpr int64_t kMostBlocks = 1024;
  const int64_t blocks = std::clamp<int64_t>(n / kLeastBand, 1, kMostBlocks);
  auto* partial = static_cast<double*>(stream.cuda()->scratch(static_cast<size_t>(blocks) * sizeof(double)));
  launch(stream, squares_of_bands, dim3(static_cast<unsigned int>(blocks)), kThreads, kSumBytes, n,
         divide_up(n, blocks), x, partial);
  launch(stream, add_partial, dim3(1), kThreads, kSumBytes, blocks, partial, sum);
}

}  // namespace hat::cuda
