#include <algorithm>
#include <cmath>

#include "cpu_kernels.hpp"
#include "vector_math.hpp"

namespace hat::cpu {

namespace {

/// Replaces row (V) by exp(row - maximum) and returns their sum, added up in double over pieces of the row.
double exponentiate(float* row, int64_t V, float maximum) {
  constexpr int64_t kPiece = 1024;
  double total = 0.0;
  for (int64_t begin = 0; begin < V; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, V);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      row[i] = vector_exp(row[i] - maximum);
      sum += row[i];
    }
    total += static_cast<double>(sum);
  }
  return total;
}

}  // namespace

void cross_entropy(const Stream& stream, CrossEntropyOutput output, int64_t T, int64_t V, int64_t stride,
                   const int32_t* targets, float* logits, double* row_nats) {
#pragma omp parallel for num_threads(stream.threads()) schedule(static)
  for (int64_t t = 0; t < T; ++t) {
    float* row = logits + t * stride;
    const int64_t target = targets[t];
    if (target < 0) {
      row_nats[t] = 0.0;
      if (output == CrossEntropyOutput::loss_and_gradient) std::fill_n(row, V, 0.0f);
      continue;
    }
    float maximum = row[0];
#pragma omp simd reduction(max : maximum)
    for (int64_t i = 0; i < V; ++i) maximum = row[i] > maximum ? row[i] : maximum;
    const double target_logit = row[target];
    const double sum = exponentiate(row, V, maximum);
    row_nats[t] = std::log(sum) + static_cast<double>(maximum) - target_logit;
    if (output == CrossEntropyOutput::loss) continue;
    const auto inverse = static_cast<float>(1.0 / sum);
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) row[i] *= inverse;
    row[target] -= 1.0f;
  }
}

}  // namespace hat::cpu
