#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

void bias_forward(const Stream& stream, int64_t T, int64_t N, const float* bias, float* y) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    float* row = y + t * N;
#pragma omp simd
    for (int64_t i = 0; i < N; ++i) row[i] += bias[i];
  }
}

void bias_backward(const Stream& stream, int64_t T, int64_t N, const float* dy, float* d_bias) {
  add_column_sums(stream.threads(), T, N, d_bias, [=](int64_t t, int64_t i) { return dy[t * N + i]; });
}

}  // namespace hat::cpu
