#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

void swiglu_forward(const Stream& stream, int64_t T, int64_t F, const float* gate_up, float* y) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* gate = gate_up + t * 2 * F;
    const float* up = gate + F;
    float* out = y + t * F;
#pragma omp simd
    for (int64_t f = 0; f < F; ++f) out[f] = gate[f] * vector_sigmoid(gate[f]) * up[f];
  }
}

void swiglu_backward(const Stream& stream, int64_t T, int64_t F, const float* gate_up, const float* dy,
                     float* d_gate_up) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* gate = gate_up + t * 2 * F;
    const float* up = gate + F;
    const float* gradient = dy + t * F;
    float* d_gate = d_gate_up + t * 2 * F;
    float* d_up = d_gate + F;
#pragma omp simd
    for (int64_t f = 0; f < F; ++f) {
      const float g = gate[f];
      const float sigmoid = vector_sigmoid(g);
      const float silu = g * sigmoid;
      const float slope = sigmoid + silu * (1.0f - sigmoid);
      const float d = gradient[f];
      d_gate[f] = d * up[f] * slope;
      d_up[f] = d * silu;
    }
  }
}

}  // namespace hat::cpu
