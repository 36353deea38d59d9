#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hat/core/bfloat16.hpp"
#include "simd.hpp"

/// Matrix products of tiles that fit the caches, at the rate of the multiply-add units.
///
/// The operands are tiles of *units*: 32 bits that hold kPack neighbouring elements of the dimension that is summed
/// over (one float, or two bfloat16), in memory typed as float. A product broadcasts units of one operand and
/// multiplies them with vectors of units of the other, so that all of it is the same code for every precision. The sums
/// are fp32.
namespace hat::cpu {

/// Products of fp32.
struct Fp32Products {
  static constexpr int kPack = 1;
  static constexpr bool kRounds = false;  ///< whether the operands are less exact than the fp32 they are made of
  static Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }

  static Vector load_units(const float* x) { return load(x); }
  static Vector round(Vector x) { return x; }
};

inline BitVector bits_of(Vector x) { return reinterpret_cast<BitVector>(x); }
inline Vector from_bits(BitVector x) { return reinterpret_cast<Vector>(x); }

typedef uint16_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));

/// The bits of kLanes bfloat16, each in the lower half of its lane.
inline BitVector load_bits(const bfloat16* x) {
  HalfVector v;
  std::memcpy(&v, x, sizeof v);
  return __builtin_convertvector(v, BitVector);
}

/// As to_bfloat16.
inline Vector round_to_bfloat16(Vector x) {
  const BitVector bits = bits_of(x);
  const BitVector rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return x == x ? from_bits(rounded) : x;
}

/// kLanes elements as fp32, rounded to Element.
template <typename Element>
Vector load_floats(const float* x) {
  return std::is_same_v<Element, bfloat16> ? round_to_bfloat16(load(x)) : load(x);
}
template <typename Element>
Vector load_floats(const bfloat16* x) {
  return from_bits(load_bits(x) << 16);
}

#if defined(__AVX512BF16__)
/// Products of bfloat16, two at a time with vdpbf16ps.
struct Bf16Products {
  static constexpr int kPack = 2;
  static constexpr bool kRounds = true;
  static Vector multiply_add(Vector a, Vector b, Vector c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  static Vector load_units(const bfloat16* x) {
    Vector units;
    std::memcpy(&units, x, sizeof units);
    return units;
  }
  static Vector load_units(const float* x) { return along(load(x), load(x + kLanes)); }
  /// Units of the elements low, then high.
  static Vector along(Vector low, Vector high) { return reinterpret_cast<Vector>(_mm512_cvtne2ps_pbh(high, low)); }

  /// Units whose first element is one of `first` and whose second one of `second`, lane by lane.
  static Vector across(const bfloat16* first, const bfloat16* second) {
    return from_bits(load_bits(first) | load_bits(second) << 16);
  }
  static Vector across(const float* first, const float* second) { return across(load(first), load(second)); }
  static Vector across(Vector first, Vector second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return reinterpret_cast<Vector>(
        _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first))));
  }
};
#else
/// Products of bfloat16 where the processor has none: of the same rounded numbers, as fp32.
struct Bf16Products {
  static constexpr int kPack = 1;
  static constexpr bool kRounds = true;
  static Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }

  static Vector load_units(const bfloat16* x) { return load_floats<bfloat16>(x); }
  static Vector load_units(const float* x) { return round_to_bfloat16(load(x)); }
  static Vector round(Vector x) { return round_to_bfloat16(x); }
};
#endif

/// Stores the elements low, then high, as units.
template <typename Products>
void store_along(float* units, Vector low, Vector high) {
  if constexpr (Products::kPack == 2) {
    store(units, Products::along(low, high));
  } else {
    store(units, Products::round(low));
    store(units + kLanes, Products::round(high));
  }
}

/// Stores two vectors that are neighbours in the summed dimension, rows `row` (even) and row + 1 of the units (rows /
/// kPack, `stride`).
template <typename Products>
void store_across(float* units, int64_t stride, int64_t row, Vector first, Vector second) {
  if constexpr (Products::kPack == 2) {
    store(units + row / 2 * stride, Products::across(first, second));
  } else {
    store(units + row * stride, Products::round(first));
    store(units + (row + 1) * stride, Products::round(second));
  }
}

/// c (Rows, Vectors) += a (Rows, steps) b (steps, Vectors), all of c in registers: unit a(r, k) = a[r a_row + k
/// a_step], vector b(k, v) = b[k b_row + v kLanes].
template <typename Products, int Rows, int Vectors>
[[gnu::always_inline]] inline void multiply_add_block(int64_t steps, const float* a, int64_t a_row, int64_t a_step,
                                                      const float* b, int64_t b_row, Vector (&c)[Rows][Vectors]) {
  for (int64_t k = 0; k < steps; ++k) {
    Vector b_vectors[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) b_vectors[v] = load(b + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const Vector a_unit = broadcast(a[r * a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) c[r][v] = Products::multiply_add(a_unit, b_vectors[v], c[r][v]);
    }
    a += a_step;
    b += b_row;
  }
}

/// Rows of a register block with `vectors` columns: its sums fill three quarters of the registers, enough to hide the
/// latency of the multiply-adds.
constexpr int block_rows(int vectors) { return std::min(12, kVectorRegisters * 3 / 4 / vectors); }
inline constexpr int64_t kRowMultiple = 24;  ///< the rows of every register block divide this
inline constexpr int kWidestBlock = kVectorRegisters == 32 ? 4 : 3;

/// c (rows, vectors kLanes) = initial + a b by register blocks. c must have room for rows rounded up to kRowMultiple.
/// Unit a(r, k) = a[r ARow + k AStep]; b (steps, vectors kLanes) and c have rows of `b_row` and `c_row` floats.
/// range(first, end) tells the steps [begin, end) that matter to the rows [first, end); initial(c, row) gives the
/// vector of sums to start from, where c is its address.
template <typename Products, int ARow, int AStep, int Vectors, typename Range, typename Initial>
void multiply_columns(int64_t rows, const float* a, const float* b, int64_t b_row, float* c, int64_t c_row,
                      const Range& range, const Initial& initial) {
  constexpr int kRows = block_rows(Vectors);
  static_assert(kRowMultiple % kRows == 0);
  for (int64_t first = 0; first < rows; first += kRows) {
    const std::pair<int64_t, int64_t> steps = range(first, first + kRows);
    float* c_first = c + first * c_row;
    Vector sums[kRows][Vectors];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sums[r][v] = initial(c_first + r * c_row + v * kLanes, first + r);
    }
    multiply_add_block<Products>(steps.second - steps.first, a + first * ARow + steps.first * AStep, ARow, AStep,
                                 b + steps.first * b_row, b_row, sums);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) store(c_first + r * c_row + v * kLanes, sums[r][v]);
    }
  }
}

template <typename Products, int ARow, int AStep, typename Range, typename Initial>
void multiply(int64_t rows, int64_t vectors, const float* a, const float* b, int64_t b_row, float* c, int64_t c_row,
              const Range& range, const Initial& initial) {
  while (vectors > 0) {
    const int64_t blocks = (vectors + kWidestBlock - 1) / kWidestBlock;
    const int64_t width = (vectors + blocks - 1) / blocks;  // blocks of even width: narrow ones are slow
    if (width == 1) multiply_columns<Products, ARow, AStep, 1>(rows, a, b, b_row, c, c_row, range, initial);
    if (width == 2) multiply_columns<Products, ARow, AStep, 2>(rows, a, b, b_row, c, c_row, range, initial);
    if (width == 3) multiply_columns<Products, ARow, AStep, 3>(rows, a, b, b_row, c, c_row, range, initial);
    if constexpr (kWidestBlock == 4) {
      if (width == 4) multiply_columns<Products, ARow, AStep, 4>(rows, a, b, b_row, c, c_row, range, initial);
    }
    vectors -= width;
    b += width * kLanes;
    c += width * kLanes;
  }
}

}  // namespace hat::cpu
