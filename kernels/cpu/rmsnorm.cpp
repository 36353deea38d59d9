#include <cmath>

#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

void rmsnorm_forward(const Stream& stream, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                     float* y, float* inverse_rms) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* in = x + t * C;
    float* out = y + t * C;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; ++c) sum += in[c] * in[c];
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(C) + epsilon);
    inverse_rms[t] = inverse;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) out[c] = in[c] * inverse * weight[c];
  }
}

void rmsnorm_backward(const Stream& stream, int64_t T, int64_t C, const float* x, const float* weight,
                      const float* inverse_rms, const float* dy, float* dx, float* d_weight) {
  // With n = x / r: dx = (weight dy - n mean(weight dy n)) / r.
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* in = x + t * C;
    const float* gradient = dy + t * C;
    float* out = dx + t * C;
    const float inverse = inverse_rms[t];
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < C; ++c) dot += weight[c] * gradient[c] * in[c];
    const float projection = dot / static_cast<float>(C) * inverse * inverse * inverse;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) out[c] += weight[c] * gradient[c] * inverse - in[c] * projection;
  }
  add_column_sums(stream.threads(), T, C, d_weight,
                  [=](int64_t t, int64_t c) { return dy[t * C + c] * x[t * C + c] * inverse_rms[t]; });
}

}  // namespace hat::cpu
