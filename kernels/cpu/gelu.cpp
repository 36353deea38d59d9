#include "cpu_kernels.hpp"
#include "elements.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

namespace {

// gelu(x) = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), and (1 + tanh u) / 2 = sigmoid(2 u).
constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

inline float gate(float x) { return vector_sigmoid(kTwiceRootTwoOverPi * (x + kCubic * x * x * x)); }

/// Values that are not kept are still rounded as if they were.
template <typename E>
void forward_row(int64_t F, const float* x, const float* bias, E* kept, float* y) {
  if (kept == nullptr) {
#pragma omp simd
    for (int64_t f = 0; f < F; ++f) {
      const float v = rounded<E>(x[f] + bias[f]);
      y[f] = v * gate(v);
    }
    return;
  }
#pragma omp simd
  for (int64_t f = 0; f < F; ++f) {
    const float v = rounded<E>(x[f] + bias[f]);
    write(v, kept + f);
    y[f] = v * gate(v);
  }
}

}  // namespace

void gelu_forward(const Stream& stream, int64_t T, int64_t F, const float* x, const float* bias, Values up, float* y) {
  with_elements(up, [&](auto* kept) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
    for (int64_t t = 0; t < T; ++t) {
      forward_row(F, x + t * F, bias, kept == nullptr ? nullptr : kept + t * F, y + t * F);
    }
  });
}

void gelu_backward(const Stream& stream, int64_t T, int64_t F, ConstValues up, const float* dy, float* d_up, float* y) {
  with_elements(up, [&](const auto* kept) {
#pragma omp parallel for simd num_threads(stream.threads()) schedule(static)
    for (int64_t i = 0; i < T * F; ++i) {
      const float v = read(kept + i);
      const float s = gate(v);
      const float slope = kTwiceRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
      const float d = dy[i];
      y[i] = v * s;
      d_up[i] = d * (s + v * s * (1.0f - s) * slope);
    }
  });
}

}  // namespace hat::cpu
