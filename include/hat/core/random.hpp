#pragma once
#include <cmath>
#include <cstdint>
#include <numbers>

namespace hat {

/// Counter-based random numbers: the value depends only on (seed, stream, counter), so any rank can make any part of a
/// random tensor or of a shuffle alone, and nothing has to be saved but the counter.
/// The mixer is SplitMix64 (Steele, Lea, Flood 2014), applied to each of the three in turn.
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  return mix_bits(mix_bits(mix_bits(seed) ^ stream) ^ counter);
}

/// Uniform in [0, 1).
inline double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<double>(random_bits(seed, stream, counter) >> 11) * 0x1.0p-53;
}

/// Standard normal (Box-Muller, one value per counter).
inline double random_normal(uint64_t seed, uint64_t stream, uint64_t counter) {
  const double u = 1.0 - random_uniform(seed, stream, 2 * counter);
  const double v = random_uniform(seed, stream, 2 * counter + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

/// Log-normal with mean 1 and this standard deviation.
inline double random_log_normal(double deviation, uint64_t seed, uint64_t stream, uint64_t counter) {
  const double variance = std::log1p(deviation * deviation);  // of the logarithm
  return std::exp(std::sqrt(variance) * random_normal(seed, stream, counter) - 0.5 * variance);
}

__extension__ typedef unsigned __int128 uint128_t;

/// Uniform integer in [0, n), n > 0. The bias is below n / 2^64.
inline uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n) {
  return static_cast<uint64_t>((static_cast<uint128_t>(random_bits(seed, stream, counter)) * n) >> 64);
}

}  // namespace hat
