#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hat {

/// The upper half of an fp32 number: 8 bits of exponent, 8 of mantissa (one of them implied). Storage only; arithmetic
/// is done in fp32.
struct bfloat16 {
  uint16_t bits = 0;
};

inline float to_float(bfloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// To the nearest, ties to even; NaN stays NaN. Without a branch, so that loops around it become vector code.
inline bfloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

/// Arrays of equal lengths that do not overlap.
inline void to_bfloat16(std::span<const float> from, std::span<bfloat16> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = to_bfloat16(from[i]);
}
inline void to_float(std::span<const bfloat16> from, std::span<float> to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = to_float(from[i]);
}

}  // namespace hat
