#pragma once
#include <cstdint>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "elements.hpp"
#include "hat/core/bfloat16.hpp"

namespace hat::cpu {

/// 16 numbers at once. Where registers are narrower, the compiler uses several.
inline constexpr int64_t kPairCount = 16;
typedef float FloatLanes __attribute__((vector_size(64)));
typedef uint32_t PairLanes __attribute__((vector_size(64)));  ///< each lane two bf16, the first in the lower half

/// Two bf16 in a lane.
template <typename E>
uint32_t pair_of(const E* first, const E* second) {
  return static_cast<uint32_t>(to_bfloat16(read(second)).bits) << 16 | to_bfloat16(read(first)).bits;
}

#if defined(__AVX512BF16__)
inline __m256i narrow(const float* x, __mmask16 lanes) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, x)));
}
inline __m256i narrow(const bfloat16* x, __mmask16 lanes) { return _mm256_maskz_loadu_epi16(lanes, x); }
#endif

/// target[i] = the pair first[i], second[i], for count <= kPairCount.
template <typename E>
void store_pairs(const E* first, const E* second, int64_t count, uint32_t* target) {
#if defined(__AVX512BF16__)
  const auto lanes = static_cast<__mmask16>((1u << count) - 1u);
  const __m512i low = _mm512_maskz_cvtepu16_epi32(lanes, narrow(first, lanes));
  const __m512i high = _mm512_maskz_slli_epi32(lanes, _mm512_maskz_cvtepu16_epi32(lanes, narrow(second, lanes)), 16);
  _mm512_mask_storeu_epi32(target, lanes, _mm512_or_si512(low, high));
#else
  for (int64_t i = 0; i < count; ++i) target[i] = pair_of(first + i, second + i);
#endif
}

/// target[i] = the pair x[2 i], x[2 i + 1], for `count` pairs.
inline void store_neighbours(const float* x, int64_t count, uint32_t* target) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  for (; i + kPairCount <= count; i += kPairCount) {
    const __m512 low = _mm512_loadu_ps(x + 2 * i);
    const __m512 high = _mm512_loadu_ps(x + 2 * i + kPairCount);
    _mm512_storeu_si512(target + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
#endif
  for (; i < count; ++i) target[i] = pair_of(x + 2 * i, x + 2 * i + 1);
}
inline void store_neighbours(const bfloat16* x, int64_t count, uint32_t* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = pair_of(x + 2 * i, x + 2 * i + 1);
}

/// sum + the product of the firsts + the product of the seconds, in every lane. `a` is one pair, the same for all.
inline FloatLanes add_pair_products(FloatLanes sum, uint32_t a, PairLanes b) {
#if defined(__AVX512BF16__)
  const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a)));
  return _mm512_dpbf16_ps(sum, left, reinterpret_cast<__m512bh>(b));
#else
  const PairLanes first = b << 16;
  const PairLanes second = b & 0xffff0000u;
  sum += std::bit_cast<float>(a << 16) * reinterpret_cast<FloatLanes>(first);
  return sum + std::bit_cast<float>(a & 0xffff0000u) * reinterpret_cast<FloatLanes>(second);
#endif
}

}  // namespace hat::cpu
