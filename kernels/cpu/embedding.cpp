#include <algorithm>

#include "cpu_kernels.hpp"

namespace hat::cpu {

void embedding_forward(const Stream& stream, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                       const float* table, const float* position_table, float* y) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    const float* row = table + tokens[t] * C;
    float* out = y + t * C;
    if (position_table == nullptr) {
      std::copy_n(row, C, out);
      continue;
    }
    const float* position = position_table + positions[t] * C;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) out[c] = row[c] + position[c];
  }
}

void embedding_backward(const Stream& stream, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                        const float* dy, float* d_table, float* d_position_table) {
  // Tokens repeat, so threads share out columns, not rows; each row is added in the order of the batch.
  const int64_t threads = stream.threads();
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t part = 0; part < threads; ++part) {
    const int64_t begin = C * part / threads;
    const int64_t end = C * (part + 1) / threads;
    for (int64_t t = 0; t < T; ++t) {
      const float* in = dy + t * C;
      float* row = d_table + tokens[t] * C;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) row[c] += in[c];
      if (d_position_table == nullptr) continue;
      float* position = d_position_table + positions[t] * C;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) position[c] += in[c];
    }
  }
}

}  // namespace hat::cpu
