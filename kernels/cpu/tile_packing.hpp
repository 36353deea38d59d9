#pragma once
#include <algorithm>
#include <cstdint>

#include "tile_products.hpp"

/// Copies of tiles of a matrix x (rows, columns), rows `stride` elements apart, as units for tile_products.hpp. What
/// rounds a row of units up to whole vectors is zero, and so are rows of x from `rows` on.
namespace hat::cpu {

inline constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// kLanes units from `elements` elements at x, or as many as there are.
template <typename Products, typename Element>
Vector load_some_units(const Element* x, int64_t elements) {
  constexpr int64_t kElements = kLanes * Products::kPack;
  if (elements >= kElements) return Products::load_units(x);
  Element some[kElements] = {};
  std::copy_n(x, elements, some);
  return Products::load_units(some);
}

/// The next kLanes of `elements` elements at x as fp32 that is representable in Element, zeros where there are fewer.
template <typename Element, typename Source>
Vector load_some_floats(const Source* x, int64_t elements) {
  if (elements >= kLanes) return load_floats<Element>(x);
  Source some[kLanes] = {};
  std::copy_n(x, elements, some);
  return load_floats<Element>(some);
}

enum class Fetch { to_read, to_write };

/// Starts to bring x into the cache. Rows that are far apart the processor does not fetch ahead by itself.
template <Fetch kFetch = Fetch::to_read, typename Element>
void prefetch_rows(const Element* x, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(x + r * stride + c, kFetch == Fetch::to_write);
  }
}

/// packed (rows rounded up to kRowMultiple, unit_stride): the units along the columns.
template <typename Products, typename Element>
void pack_rows(const Element* x, int64_t stride, int64_t rows, int64_t columns, float* packed, int64_t unit_stride) {
  constexpr int64_t kElements = kLanes * Products::kPack;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += kElements) {
      store(packed + r * unit_stride + c / Products::kPack, load_some_units<Products>(x + r * stride + c, columns - c));
    }
  }
  std::fill(packed + rows * unit_stride, packed + round_up(rows, kRowMultiple) * unit_stride, 0.0f);
}

/// One square of pack_transposed at the border of x, of which it has less than kLanes rows or units.
template <typename Products, typename Element>
[[gnu::noinline]] void transpose_border(const Element* x, int64_t stride, int64_t rows, int64_t columns, float* packed,
                                        int64_t packed_stride) {
  Vector square[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    square[i] = i < rows ? load_some_units<Products>(x + i * stride, columns) : Vector{};
  }
  transpose(square);
  const int64_t units = std::min<int64_t>(kLanes, (columns + Products::kPack - 1) / Products::kPack);
  for (int64_t u = 0; u < units; ++u) store(packed + u * packed_stride, square[u]);
}

/// packed (columns / kPack rounded up, packed_stride): the units along the columns, transposed, for rows rounded up to
/// whole pairs of vectors. An odd column's partner is zero.
template <typename Products, typename Element>
void pack_transposed(const Element* x, int64_t stride, int64_t rows, int64_t columns, float* packed,
                     int64_t packed_stride) {
  constexpr int64_t kElements = kLanes * Products::kPack;
  for (int64_t first = 0; first < round_up(rows, 2 * kLanes); first += kLanes) {
    for (int64_t c = 0; c < columns; c += kElements) {
      const Element* from = x + first * stride + c;
      float* to = packed + c / Products::kPack * packed_stride + first;
      Vector square[kLanes];
      if (rows - first >= kLanes && columns - c >= kElements) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) square[i] = Products::load_units(from + i * stride);
        transpose(square);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) store(to + i * packed_stride, square[i]);
      } else {
        transpose_border<Products>(from, stride, rows - first, columns - c, to, packed_stride);
      }
    }
  }
}

/// packed (rows / kPack rounded up, columns rounded up to whole vectors): the units across rows, which are summed over.
template <typename Products, typename Element>
void pack_summed_rows(const Element* x, int64_t stride, int64_t rows, int64_t columns, float* packed) {
  const int64_t unit_stride = round_up(columns, kLanes);
  if constexpr (Products::kPack == 1) {
    pack_rows<Products>(x, stride, rows, columns, packed, unit_stride);
  } else {
    const Element zeros[kLanes] = {};
    for (int64_t r = 0; r < rows; r += 2) {
      for (int64_t c = 0; c < columns; c += kLanes) {
        const Element* first = x + r * stride + c;
        const Element* second = r + 1 < rows ? first + stride : zeros;
        float* to = packed + r / 2 * unit_stride + c;
        if (columns - c >= kLanes) {
          store(to, Products::across(first, second));
        } else {
          Element some[2][kLanes] = {};
          std::copy_n(first, columns - c, some[0]);
          std::copy_n(second, columns - c, some[1]);
          store(to, Products::across(some[0], some[1]));
        }
      }
    }
  }
}

}  // namespace hat::cpu
