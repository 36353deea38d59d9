#include "column_sums.cuh"
#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

// A block for each row: the widths of models are hundreds to thousands.
constexpr int kThreads = 256;
constexpr size_t kSumBytes = 2 * kThreads / kWarpThreads * sizeof(float);  // of two sums, one after the other

__global__ void rmsnorm(int64_t T, int64_t C, float epsilon, const float* x, const float* weight, float* y,
                        float* inverse_rms) {
  auto* memory = dynamic_shared<float>();
  const int64_t t = block_number();
  if (t >= T) return;
  const float* in = x + t * C;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) sum += in[c] * in[c];
  sum = block_sum<kThreads>(sum, memory);
  const float inverse = 1.0F / sqrtf(sum / static_cast<float>(C) + epsilon);
  if (threadIdx.x == 0) inverse_rms[t] = inverse;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) y[t * C + c] = in[c] * inverse * weight[c];
}

// With n = x / r: dx = (weight dy - n mean(weight dy n)) / r.
__global__ void rmsnorm_gradient(int64_t T, int64_t C, const float* x, const float* weight, const float* inverse_rms,
                                 const float* dy, float* dx) {
  auto* memory = dynamic_shared<float>();
  const int64_t t = block_number();
  if (t >= T) return;
  const float* in = x + t * C;
  const float* gradient = dy + t * C;
  float dot = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) dot += weight[c] * gradient[c] * in[c];
  dot = block_sum<kThreads>(dot, memory);
  const float inverse = inverse_rms[t];
  const float projection = dot / static_cast<float>(C) * inverse * inverse * inverse;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    dx[t * C + c] += weight[c] * gradient[c] * inverse - in[c] * projection;
  }
}

struct RmsWeightGradient {
  int64_t C;
  const float* x;
  const float* inverse_rms;
  const float* dy;
  __device__ float operator()(int64_t t, int64_t c) const { return dy[t * C + c] * x[t * C + c] * inverse_rms[t]; }
};

// The variance about the mean, in a pass of its own: the difference of two large sums would lose its digits.
__global__ void layernorm(int64_t T, int64_t C, float epsilon, const float* x, const float* weight, const float* bias,
                          float* y, float* means, float* inverse_stds) {
  auto* memory = dynamic_shared<float>();
  const int64_t t = block_number();
  if (t >= T) return;
  const float* in = x + t * C;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) sum += in[c];
  const float mean = block_sum<kThreads>(sum, memory) / static_cast<float>(C);
  float squares = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) squares += (in[c] - mean) * (in[c] - mean);
  squares = block_sum<kThreads>(squares, memory + kThreads / kWarpThreads);
  const float inverse = 1.0F / sqrtf(squares / static_cast<float>(C) + epsilon);
  if (threadIdx.x == 0) {
    means[t] = mean;
    inverse_stds[t] = inverse;
  }
  for (int64_t c = threadIdx.x; c < C; c += kThreads) y[t * C + c] = (in[c] - mean) * inverse * weight[c] + bias[c];
}

// With n = (x - mean) / s: dx = (weight dy - mean(weight dy) - n mean(weight dy n)) / s.
__global__ void layernorm_gradient(int64_t T, int64_t C, const float* x, const float* weight, const float* means,
                                   const float* inverse_stds, const float* dy, float* dx) {
  auto* memory = dynamic_shared<float>();
  const int64_t t = block_number();
  if (t >= T) return;
  const float* in = x + t * C;
  const float* gradient = dy + t * C;
  const float mean = means[t];
  const float inverse = inverse_stds[t];
  float sum = 0;
  float dot = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    const float weighted = weight[c] * gradient[c];
    sum += weighted;
    dot += weighted * (in[c] - mean) * inverse;
  }
  sum = block_sum<kThreads>(sum, memory) / static_cast<float>(C);
  dot = block_sum<kThreads>(dot, memory + kThreads / kWarpThreads) / static_cast<float>(C);
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    const float normed = (in[c] - mean) * inverse;
    dx[t * C + c] += (weight[c] * gradient[c] - sum - normed * dot) * inverse;
  }
}

struct LayerWeightGradient {
  int64_t C;
  const float* x;
  const float* means;
  const float* inverse_stds;
  const float* dy;
  __device__ float operator()(int64_t t, int64_t c) const {
    return dy[t * C + c] * (x[t * C + c] - means[t]) * inverse_stds[t];
  }
};

}  // namespace

void rmsnorm_forward(const Stream& stream, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                     float* y, float* inverse_rms) {
  if (T == 0) return;
  launch(stream, rmsnorm, blocks_for(T, 1), kThreads, kSumBytes, T, C, epsilon, x, weight, y, inverse_rms);
}

void rmsnorm_backward(const Stream& stream, int64_t T, int64_t C, const float* x, const float* weight,
                      const float* inverse_rms, const float* dy, float* dx, float* d_weight) {
  if (T == 0) return;
  launch(stream, rmsnorm_gradient, blocks_for(T, 1), kThreads, kSumBytes, T, C, x, weight, inverse_rms, dy, dx);
  add_column_sums(stream, T, C, RmsWeightGradient{C, x, inverse_rms, dy}, d_weight);
}

void layernorm_forward(const Stream& stream, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                       const float* bias, float* y, float* mean, float* inverse_std) {
  if (T == 0) return;
  launch(stream, layernorm, blocks_for(T, 1), kThreads, kSumBytes, T, C, epsilon, x, weight, bias, y, mean,
         inverse_std);
}

void layernorm_backward(const Stream& stream, int64_t T, int64_t C, const float* x, const float* weight,
                        const float* mean, const float* inverse_std, const float* dy, float* dx, float* d_weight,
                        float* d_bias) {
  if (T == 0) return;
  launch(stream, layernorm_gradient, blocks_for(T, 1), kThreads, kSumBytes, T, C, x, weight, mean, inverse_std, dy, dx);
  add_column_sums(stream, T, C, LayerWeightGradient{C, x, mean, inverse_std, dy}, d_weight);
  bias_backward(stream, T, C, dy, d_bias);
}

}  // namespace hat::cuda
