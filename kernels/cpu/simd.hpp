#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

/// The widest vector of floats that the compiler may use here, and the few operations on it that the kernels need
/// beyond plain arithmetic.
namespace hat::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kVectorRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorRegisters = 16;
#endif
inline constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(float));

typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t BitVector __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));

inline Vector load(const float* x) {
  Vector v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

inline void store(float* x, Vector v) { std::memcpy(x, &v, sizeof v); }

/// 0, 1, 2, ...
inline IntVector lane_numbers() {
  IntVector lanes;
  for (int32_t i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

#if defined(__AVX512F__)
constexpr __mmask16 kAllLanes = 0xffff;  // for masked forms, because GCC 12 warns inside its own unmasked ones

/// x, bit by bit, in every lane.
inline Vector broadcast(float x) { return _mm512_set1_ps(x); }
inline Vector max(Vector a, Vector b) { return _mm512_maskz_max_ps(kAllLanes, a, b); }
#else
inline Vector broadcast(float x) { return x - Vector{}; }  // x - 0 is x for every x: no arithmetic is left of it
inline Vector max(Vector a, Vector b) { return a > b ? a : b; }
#endif

/// 2^x for x <= 127 with a relative error below 2e-7; towards 0 below -126, NaN stays NaN. 2^x = 2^n 2^r with n the
/// nearest integer; 2^r by the polynomial of degree 5 with the least relative error on [-1/2, 1/2] among those that are
/// 1 at 0 (fitted here, in the manner of Remez).
inline Vector vector_exp2(Vector x) {
#if defined(__AVX512F__)
  const Vector n = _mm512_maskz_roundscale_ps(kAllLanes, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  const Vector shifted = x + kRound;
  const Vector n = shifted - kRound;
#endif
  const Vector r = x - n;
  Vector p = r * 0.0013269407209008932f + 0.009671294130384922f;
  p = p * r + 0.0555071122944355f;
  p = p * r + 0.24022246897220612f;
  p = p * r + 0.6931470036506653f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(kAllLanes, p, n);
#else
  const auto exponent = reinterpret_cast<BitVector>(shifted) - std::bit_cast<uint32_t>(kRound) + 127u;
  const Vector y = p * reinterpret_cast<Vector>(exponent << 23);
  return x < -126.0f ? Vector{} : y;
#endif
}

/// Interleaves the lanes of a and b: a0 b0 a1 b1 ..., the lower and the upper half of it.
template <int64_t... I>
inline void interleave(Vector& a, Vector& b, std::integer_sequence<int64_t, I...>) {
  const Vector low = __builtin_shufflevector(a, b, (I / 2 + I % 2 * kLanes)...);
  const Vector high = __builtin_shufflevector(a, b, (kLanes / 2 + I / 2 + I % 2 * kLanes)...);
  a = low;
  b = high;
}

/// Transposes a square: log2(kLanes) perfect shuffles of the rows.
inline void transpose(Vector (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int64_t stage = 1; stage < kLanes; stage *= 2) {
    Vector shuffled[kLanes];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLanes / 2; ++i) {
      shuffled[2 * i] = rows[i];
      shuffled[2 * i + 1] = rows[i + kLanes / 2];
      interleave(shuffled[2 * i], shuffled[2 * i + 1], std::make_integer_sequence<int64_t, kLanes>());
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
  }
}

}  // namespace hat::cpu
