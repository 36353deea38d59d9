#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

/// As the value will be read once it was kept.
template <class E>
__device__ __forceinline__ float rounded(float value) {
  if constexpr (std::is_same_v<E, float>)
    return value;
  else
    return __bfloat162float(__float2bfloat16_rn(value));
}

// gelu(x) = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), and (1 + tanh u) / 2 = sigmoid(2 u).
constexpr float kTwiceRootTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;
__device__ __forceinline__ float gelu_gate(float x) { return sigmoid(kTwiceRootTwoOverPi * (x + kCubic * x * x * x)); }

template <class E>
__global__ void swiglu(int64_t T, int64_t F, const float* x, E* gate_up, float* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= T * F) return;
  const int64_t t = i / F;
  const int64_t at = t * 2 * F + i % F;
  const float gate = rounded<E>(x[at]);
  const float up = rounded<E>(x[at + F]);
  if (gate_up != nullptr) {
    write_value(gate_up + at, gate);
    write_value(gate_up + at + F, up);
  }
  y[i] = gate * sigmoid(gate) * up;
}

template <class E>
__global__ void swiglu_gradient(int64_t T, int64_t F, const E* gate_up, const float* dy, float* d_gate_up, float* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= T * F) return;
  const int64_t t = i / F;
  const int64_t at = t * 2 * F + i % F;
  const float gate = read_value(gate_up + at);
  const float up = read_value(gate_up + at + F);
  const float s = sigmoid(gate);
  const float silu = gate * s;
  const float d = dy[i];
  y[i] = silu * up;
  d_gate_up[at] = d * up * (s + silu * (1.0F - s));
  d_gate_up[at + F] = d * silu;
}

template <class E>
__global__ void gelu(int64_t T, int64_t F, const float* x, const float* bias, E* kept, float* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= T * F) return;
  const float v = rounded<E>(x[i] + bias[i % F]);
  if (kept != nullptr) write_value(kept + i, v);
  y[i] = v * gelu_gate(v);
}

template <class E>
__global__ void gelu_gradient(int64_t n, const E* kept, const float* dy, float* d_up, float* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= n) return;
  const float v = read_value(kept + i);
  const float s = gelu_gate(v);
  const float slope = kTwiceRootTwoOverPi * (1.0F + 3.0F * kCubic * v * v);
  const float d = dy[i];
  y[i] = v * s;
  d_up[i] = d * (s + v * s * (1.0F - s) * slope);
}

}  // namespace

void swiglu_forward(const Stream& stream, int64_t T, int64_t F, const float* x, Values gate_up, float* y) {
  if (T * F == 0) return;
  with_element(gate_up, [&]<class E>(E* kept) {
    launch(stream, swiglu<E>, blocks_for(T * F, kThreads), kThreads, 0, T, F, x, kept, y);
  });
}

void swiglu_backward(const Stream& stream, int64_t T, int64_t F, ConstValues gate_up, const float* dy, float* d_gate_up,
                     float* y) {
  if (T * F == 0) return;
  with_element(gate_up, [&]<class E>(const E* kept) {
    launch(stream, swiglu_gradient<E>, blocks_for(T * F, kThreads), kThreads, 0, T, F, kept, dy, d_gate_up, y);
  });
}

void gelu_forward(const Stream& stream, int64_t T, int64_t F, const float* x, const float* bias, Values up, float* y) {
  if (T * F == 0) return;
  with_element(up, [&]<class E>(E* kept) {
    launch(stream, gelu<E>, blocks_for(T * F, kThreads), kThreads, 0, T, F, x, bias, kept, y);
  });
}

void gelu_backward(const Stream& stream, int64_t T, int64_t F, ConstValues up, const float* dy, float* d_up, float* y) {
  if (T * F == 0) return;
  with_element(up, [&]<class E>(const E* kept) {
    launch(stream, gelu_gradient<E>, blocks_for(T * F, kThreads), kThreads, 0, T * F, kept, dy, d_up, y);
  });
}

}  // namespace hat::cuda
