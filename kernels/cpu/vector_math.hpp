#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace hat::cpu {

/// exp(x) in single precision, a few units in the last place, without a branch or a call so that loops around it become
/// vector code (libm's does not). 0 below -87.3 (the result would be denormal), at most exp(88.3) above; NaN stays NaN.
/// x = n ln 2 + r, |r| <= ln 2 / 2, Taylor polynomial in r, 2^n through the exponent bits (the method of Cephes).
inline float vector_exp(float x) {
  constexpr float kLow = -87.3f;
  constexpr float kHigh = 88.3f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  float z = x < kLow ? kLow : x;
  z = z > kHigh ? kHigh : z;
  const float shifted = z * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = z - n * 0.693145751953125f;  // ln 2 in two parts, so that the first product is exact
  r = r - n * 1.42860682030941723212e-6f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r * r + r;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float scale = std::bit_cast<float>((exponent + 127) << 23);
  const float y = p * scale + scale;
  return x < kLow ? 0.0f : y;
}

/// 1 / (1 + exp(-x)).
inline float vector_sigmoid(float x) { return 1.0f / (1.0f + vector_exp(-x)); }

/// sums[c] += sum over rows t of term(t, c), for `columns` columns. Each slice of columns belongs to one thread and is
/// added up in blocks of rows, so the result does not depend on the thread count and loses little to rounding.
template <typename Term>
void add_column_sums(int threads, int64_t rows, int64_t columns, float* sums, const Term& term) {
  constexpr int64_t kSlice = 64;
  constexpr int64_t kRows = 128;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t first = 0; first < columns; first += kSlice) {
    const int64_t width = std::min(kSlice, columns - first);
    for (int64_t begin = 0; begin < rows; begin += kRows) {
      const int64_t end = std::min(begin + kRows, rows);
      float block[kSlice] = {};
      if (width == kSlice) {  // the usual case, with a trip count that the compiler knows
        for (int64_t t = begin; t < end; ++t) {
#pragma omp simd
          for (int64_t c = 0; c < kSlice; ++c) block[c] += term(t, first + c);
        }
      } else {
        for (int64_t t = begin; t < end; ++t) {
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) block[c] += term(t, first + c);
        }
      }
      for (int64_t c = 0; c < width; ++c) sums[first + c] += block[c];
    }
  }
}

}  // namespace hat::cpu
