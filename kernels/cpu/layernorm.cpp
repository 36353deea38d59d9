#include <cmath>

#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

void layernorm_forward(const Stream& stream, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                       const float* bias, float* y, float* mean, float* inverse_std) {
  const auto width = static_cast<float>(C);
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* in = x + t * C;
    float* out = y + t * C;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; ++c) sum += in[c];
    const float center = sum / width;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < C; ++c) squares += (in[c] - center) * (in[c] - center);
    const float inverse = 1.0f / std::sqrt(squares / width + epsilon);
    mean[t] = center;
    inverse_std[t] = inverse;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) out[c] = (in[c] - center) * inverse * weight[c] + bias[c];
  }
}

void layernorm_backward(const Stream& stream, int64_t T, int64_t C, const float* x, const float* weight,
                        const float* mean, const float* inverse_std, const float* dy, float* dx, float* d_weight,
                        float* d_bias) {
  // With n = (x - mean) / s and g = weight dy: dx = (g - mean(g) - n mean(g n)) / s.
  const auto width = static_cast<float>(C);
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* in = x + t * C;
    const float* gradient = dy + t * C;
    float* out = dx + t * C;
    const float center = mean[t];
    const float inverse = inverse_std[t];
    float sum = 0.0f;
    float dot = 0.0f;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t c = 0; c < C; ++c) {
      const float scaled = weight[c] * gradient[c];
      sum += scaled;
      dot += scaled * (in[c] - center);
    }
    const float shift = sum / width;
    const float projection = dot / width * inverse * inverse;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) {
      out[c] += (weight[c] * gradient[c] - shift - (in[c] - center) * projection) * inverse;
    }
  }
  add_column_sums(stream.threads(), T, C, d_weight,
                  [=](int64_t t, int64_t c) { return dy[t * C + c] * (x[t * C + c] - mean[t]) * inverse_std[t]; });
  add_column_sums(stream.threads(), T, C, d_bias, [=](int64_t t, int64_t c) { return dy[t * C + c]; });
}

}  // namespace hat::cpu
