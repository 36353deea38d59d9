#include <cmath>

#include "cpu_kernels.hpp"
#include "elements.hpp"

namespace hat::cpu {

namespace {

/// One head of one row: pairs (i, i + half) of x + bias turned by the angles of the row.
template <typename E>
void rotate_head(int64_t half, const float* cosine, const float* sine, float sign, const float* bias, const float* x,
                 E* y) {
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float low = x[i];
      const float high = x[i + half];
      const float s = sign * sine[i];
      write(low * cosine[i] - high * s, y + i);
      write(high * cosine[i] + low * s, y + i + half);
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i] + bias[i];
    const float high = x[i + half] + bias[i + half];
    const float s = sign * sine[i];
    write(low * cosine[i] - high * s, y + i);
    write(high * cosine[i] + low * s, y + i + half);
  }
}

template <typename E>
void add_bias(int64_t count, const float* bias, const float* x, E* y) {
  if (bias == nullptr) {
    if (static_cast<const void*>(x) == static_cast<const void*>(y)) return;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) write(x[i], y + i);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) write(x[i] + bias[i], y + i);
}

}  // namespace

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

void rope_forward(const Stream& stream, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                  const float* cosine, const float* sine, const float* bias, const float* x, Values y) {
  const int64_t half = D / 2;
  const int64_t rotated = cosine == nullptr ? 0 : heads * D;
  with_elements(y, [&](auto* out) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t first = 0; first < rotated; first += D) {
        rotate_head(half, cosine + positions[t] * half, sine + positions[t] * half, 1.0f,
                    bias == nullptr ? nullptr : bias + first, x + t * N + first, out + t * N + first);
      }
      add_bias(N - rotated, bias == nullptr ? nullptr : bias + rotated, x + t * N + rotated, out + t * N + rotated);
    }
  });
}

void rope_backward(const Stream& stream, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                   const float* cosine, const float* sine, float* dx) {
  const int64_t half = D / 2;
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      float* head = dx + t * N + h * D;
      rotate_head(half, cosine + positions[t] * half, sine + positions[t] * half, -1.0f, nullptr, head, head);
    }
  }
}

}  // namespace hat::cpu
