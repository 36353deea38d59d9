#include <cmath>

#include "cpu_kernels.hpp"

namespace hat::cpu {

void rope_table(const Stream& stream, int64_t length, int64_t D, double base, float* cosine, float* sine) {
  const int64_t half = D / 2;
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t position = 0; position < length; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(D));
      const double angle = static_cast<double>(position) * frequency;
      cosine[position * half + i] = static_cast<float>(std::cos(angle));
      sine[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rope(const Stream& stream, RopeDirection direction, int64_t T, int64_t heads, int64_t D, int64_t stride,
          const int32_t* positions, const float* cosine, const float* sine, float* x) {
  const int64_t half = D / 2;
  const float sign = direction == RopeDirection::forward ? 1.0f : -1.0f;
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* cos_row = cosine + positions[t] * half;
    const float* sin_row = sine + positions[t] * half;
    for (int64_t h = 0; h < heads; ++h) {
      float* low = x + t * stride + h * D;
      float* high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        const float s = sign * sin_row[i];
        low[i] = a * cos_row[i] - b * s;
        high[i] = b * cos_row[i] + a * s;
      }
    }
  }
}

}  // namespace hat::cpu
