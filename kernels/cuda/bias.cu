#include "column_sums.cuh"
#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 256;

struct Element {
  int64_t N;
  const float* dy;
  __device__ float operator()(int64_t t, int64_t c) const { return dy[t * N + c]; }
};

__global__ void add_row_with_bias(int64_t T, int64_t N, const float* x, const float* bias, float* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= T * N) return;
  y[i] += x[i] + (bias == nullptr ? 0.0F : bias[i % N]);
}

}  // namespace

int64_t column_sums_scratch(int64_t T, int64_t N) { return bands_of(T) * N * static_cast<int64_t>(sizeof(float)); }

void bias_backward(const Stream& stream, int64_t T, int64_t N, const float* dy, float* d_bias) {
  add_column_sums(stream, T, N, Element{N, dy}, d_bias);
}

void residual_forward(const Stream& stream, int64_t T, int64_t N, const float* x, const float* bias, float* y) {
  if (T * N == 0) return;
  launch(stream, add_row_with_bias, blocks_for(T * N, kThreads), kThreads, 0, T, N, x, bias, y);
}

}  // namespace hat::cuda
