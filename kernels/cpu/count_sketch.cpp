#include <algorithm>
#include <array>
#include <bit>

#include "../sketch_hash.hpp"
#include "cpu_kernels.hpp"

namespace hat::cpu {

namespace {

void add(int64_t n, const float* x, float* sum) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

/// y = x with random signs.
void flip(int64_t n, uint32_t signs, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[i]) ^ ((signs >> i) << 31));
}

}  // namespace

void count_sketch(const Stream&, int64_t n, const float* x, float* sketch, double* sum_of_squares) {
  std::fill_n(sketch, kSketchBuckets, 0.0F);
  std::array<float, kSketchBuckets> flipped;
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += kSketchBuckets) {
    const int64_t length = std::min(kSketchBuckets, n - begin);
    const float* run = x + begin;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < length; ++i) total += static_cast<double>(run[i]) * static_cast<double>(run[i]);
    for (int64_t i = 0; i < length; i += kSketchWord) {
      flip(std::min(kSketchWord, length - i), sketch_signs((begin + i) / kSketchWord), run + i, flipped.data() + i);
    }
    const int64_t rotation = sketch_rotation(begin / kSketchBuckets);
    const int64_t before_end = std::min(length, kSketchBuckets - rotation);
    add(before_end, flipped.data(), sketch + rotation);
    add(length - before_end, flipped.data() + before_end, sketch);
  }
  *sum_of_squares = total;
}

}  // namespace hat::cpu
