#include <algorithm>
#include <array>
#include <bit>

#include "cpu_kernels.hpp"
#include "hat/core/random.hpp"

namespace hat::cpu {

namespace {

constexpr uint64_t kSeed = 0x5ce7c4;  // the same on all ranks, for ever: sketches are added and subtracted
constexpr uint64_t kRotations = 1;
constexpr uint64_t kSigns = 2;
constexpr int64_t kWord = 32;  // elements whose signs are one random number

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

// Elements of one run of kSketchBuckets have a bucket each. Every run is rotated by a random number, or a column of a
// matrix would fall into few buckets.
void count_sketch(const Stream&, int64_t n, const float* x, float* sketch, double* sum_of_squares) {
  std::fill_n(sketch, kSketchBuckets, 0.0F);
  std::array<float, kSketchBuckets> flipped;
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += kSketchBuckets) {
    const int64_t length = std::min(kSketchBuckets, n - begin);
    const float* run = x + begin;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < length; ++i) total += static_cast<double>(run[i]) * static_cast<double>(run[i]);
    for (int64_t i = 0; i < length; i += kWord) {
      const uint64_t signs = random_bits(kSeed, kSigns, static_cast<uint64_t>((begin + i) / kWord));
      flip(std::min(kWord, length - i), static_cast<uint32_t>(signs >> 32), run + i, flipped.data() + i);
    }
    const auto run_number = static_cast<uint64_t>(begin / kSketchBuckets);
    const auto rotation = static_cast<int64_t>(random_below(kSeed, kRotations, run_number, kSketchBuckets));
    const int64_t before_end = std::min(length, kSketchBuckets - rotation);
    add(before_end, flipped.data(), sketch + rotation);
    add(length - before_end, flipped.data() + before_end, sketch);
  }
  *sum_of_squares = total;
}

}  // namespace hat::cpu
