#include "cpu_kernels.hpp"
#include "elements.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

namespace {

/// Values that are not kept are still rounded as if they were.
template <typename E>
void forward_row(int64_t F, const float* x, E* kept, float* y) {
  if (kept == nullptr) {
#pragma omp simd
    for (int64_t f = 0; f < F; ++f) {
      const float gate = rounded<E>(x[f]);
      y[f] = gate * vector_sigmoid(gate) * rounded<E>(x[f + F]);
    }
    return;
  }
#pragma omp simd
  for (int64_t f = 0; f < F; ++f) {
    const float gate = rounded<E>(x[f]);
    const float up = rounded<E>(x[f + F]);
    write(gate, kept + f);
    write(up, kept + f + F);
    y[f] = gate * vector_sigmoid(gate) * up;
  }
}

}  // namespace

void swiglu_forward(const Stream& stream, int64_t T, int64_t F, const float* x, Values gate_up, float* y) {
  with_elements(gate_up, [&](auto* kept) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
    for (int64_t t = 0; t < T; ++t) {
      forward_row(F, x + t * 2 * F, kept == nullptr ? nullptr : kept + t * 2 * F, y + t * F);
    }
  });
}

void swiglu_backward(const Stream& stream, int64_t T, int64_t F, ConstValues gate_up, const float* dy, float* d_gate_up,
                     float* y) {
  with_elements(gate_up, [&](const auto* kept) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
    for (int64_t t = 0; t < T; ++t) {
      const auto* gate_row = kept + t * 2 * F;
      const auto* up_row = gate_row + F;
      const float* gradient = dy + t * F;
      float* d_gate = d_gate_up + t * 2 * F;
      float* d_up = d_gate + F;
      float* out = y + t * F;
#pragma omp simd
      for (int64_t f = 0; f < F; ++f) {
        const float gate = read(gate_row + f);
        const float up = read(up_row + f);
        const float sigmoid = vector_sigmoid(gate);
        const float silu = gate * sigmoid;
        const float slope = sigmoid + silu * (1.0f - sigmoid);
        const float d = gradient[f];
        out[f] = silu * up;
        d_gate[f] = d * up * slope;
        d_up[f] = d * silu;
      }
    }
  });
}

}  // namespace hat::cpu
