#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

namespace {

// gelu(x) = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), and (1 + tanh u) / 2 = sigmoid(2 u).
constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

}  // namespace

void gelu_forward(const Stream& stream, int64_t n, const float* x, float* y) {
#pragma omp parallel for simd num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i];
    y[i] = v * vector_sigmoid(kTwiceRootTwoOverPi * (v + kCubic * v * v * v));
  }
}

void gelu_backward(const Stream& stream, int64_t n, const float* x, const float* dy, float* dx) {
#pragma omp parallel for simd num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i];
    const float s = vector_sigmoid(kTwiceRootTwoOverPi * (v + kCubic * v * v * v));
    const float slope = kTwiceRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
    dx[i] = dy[i] * (s + v * s * (1.0f - s) * slope);
  }
}

}  // namespace hat::cpu
