#include "cpu_kernels.hpp"

namespace hat::cpu {

void round(const Stream& stream, int64_t n, const float* x, bfloat16* y) {
#pragma omp parallel for simd num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < n; ++i) y[i] = to_bfloat16(x[i]);
}

void fill(const Stream& stream, int64_t n, float value, float* y) {
#pragma omp parallel for simd num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < n; ++i) y[i] = value;
}

void scale(const Stream& stream, int64_t n, float alpha, float* y) {
#pragma omp parallel for simd num_threads(stream.threads()) schedule(static)
  for (int64_t i = 0; i < n; ++i) y[i] *= alpha;
}

void sum_of_squares(const Stream&, int64_t n, const float* x, double* sum) {
  // One thread, so that the order of the additions is fixed; memory bandwidth is the limit anyway.
  double total = 0.0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  *sum = total;
}

}  // namespace hat::cpu
