#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

void bias_backward(const Stream& stream, int64_t T, int64_t N, const float* dy, float* d_bias) {
  add_column_sums(stream.threads(), T, N, d_bias, [=](int64_t t, int64_t i) { return dy[t * N + i]; });
}

void residual_forward(const Stream& stream, int64_t T, int64_t N, const float* x, const float* bias, float* y) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* in = x + t * N;
    float* out = y + t * N;
    if (bias == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < N; ++i) out[i] += in[i];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < N; ++i) out[i] += in[i] + bias[i];
    }
  }
}

}  // namespace hat::cpu
