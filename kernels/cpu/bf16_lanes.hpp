#pragma once
#include <cstdint>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "hat/core/bfloat16.hpp"

namespace hat::cpu {

/// 16 numbers at once. Where registers are narrower, the compiler uses several.
inline constexpr int64_t kPairCount = 16;
typedef float FloatLanes __attribute__((vector_size(64)));
typedef uint32_t PairLanes __attribute__((vector_size(64)));  ///< each lane two bf16, the first in the lower half

/// Two bf16 in a lane.
inline uint32_t pair_of(float first, float second) {
  return static_cast<uint32_t>(to_bfloat16(second).bits) << 16 | to_bfloat16(first).bits;
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
