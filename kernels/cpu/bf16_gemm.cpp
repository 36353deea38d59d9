// Matrix products with bf16 operands and fp32 sums, after Goto, van de Geijn 2008 (and BLIS): panels of both operands
// are packed so that the inner loop reads them in order. Packing rounds to bf16, so operands may be stored in fp32; and
// nothing is compiled for a shape at run time, so units of any length cost the same.
#include <algorithm>
#include <cstring>
#include <utility>

#include "bf16_lanes.hpp"
#include "elements.hpp"
#include "hat/device/device_buffer.hpp"
#include "serial_gemm.hpp"
#include "simd.hpp"

namespace hat::cpu {

namespace {

// A tile of c: kTileRows x kTileColumns sums in registers (28 of 32 with AVX-512).
constexpr int64_t kTileRows = 14;
constexpr int64_t kTileVectors = 2;
constexpr int64_t kTileColumns = kTileVectors * kPairCount;
// Blocks: a strip of b (kDepth x kTileColumns) stays in the first cache, the block of a in the second, that of b in the
// third.
constexpr int64_t kDepth = 512;
constexpr int64_t kPairs = kDepth / 2;
constexpr int64_t kRows = 32 * kTileRows;
constexpr int64_t kColumns = 128 * kTileColumns;

/// op(x) of an operand: element (row, column) at row * row_stride + column * column_stride; one of the two is 1.
template <typename E>
struct View {
  const E* data;
  int64_t row_stride;
  int64_t column_stride;
  View at(int64_t row, int64_t column) const {
    return {data + row * row_stride + column * column_stride, row_stride, column_stride};
  }
};

// How a strip of kTileRows rows of a lies in memory, as pairs along k: by rows where a's rows lie in order, else by
// pairs, so that packing always copies runs of neighbours.
enum class StripOrder { by_row, by_pair };
template <StripOrder order>
constexpr int64_t strip_offset(int64_t row, int64_t pair) {
  return order == StripOrder::by_row ? row * kPairs + pair : pair * kTileRows + row;
}
constexpr int64_t kStripSize = kTileRows * kPairs;

// What stands for the second of a pair behind an odd end.
constexpr float kZeros[kPairCount] = {};
constexpr bfloat16 kNarrowZeros[kPairCount] = {};
const float* zeros(const float*) { return kZeros; }
const bfloat16* zeros(const bfloat16*) { return kNarrowZeros; }

/// Pairs of a row of k, of which `depth` elements are packed.
template <typename E>
void pack_row(const E* row, int64_t depth, uint32_t* target) {
  store_neighbours(row, depth / 2, target);
  if (depth % 2 != 0) target[depth / 2] = pair_of(row + depth - 1, zeros(row));
}

/// Rows of a: pairs lie behind each other.
template <typename E>
void pack_rows(View<E> a, int64_t rows, int64_t depth, uint32_t* packed) {
  for (int64_t row = 0; row < rows; ++row) {
    pack_row(a.at(row, 0).data, depth,
             packed + row / kTileRows * kStripSize + strip_offset<StripOrder::by_row>(row % kTileRows, 0));
  }
}

/// Two rows of memory whose elements make pairs. `second` is null behind an odd end.
template <typename E>
struct RowPair {
  const E* first;
  const E* second;
  /// Columns [begin, begin + count), count <= kPairCount.
  void pack(int64_t begin, int64_t count, uint32_t* target) const {
    store_pairs(first + begin, second == nullptr ? zeros(first) : second + begin, count, target);
  }
};

template <typename E>
RowPair<E> row_pair(const E* data, int64_t stride, int64_t k, int64_t depth) {
  return {data + k * stride, k + 1 < depth ? data + (k + 1) * stride : nullptr};
}

// The next two go along whole rows of memory: the rows' distance may be a power of two, and then they meet in one cache
// set.

template <typename E>
void pack_transposed_rows(View<E> a, int64_t rows, int64_t depth, uint32_t* packed) {
  for (int64_t k = 0; k < depth; k += 2) {
    const RowPair<E> pair = row_pair(a.data, a.column_stride, k, depth);
    uint32_t* target = packed + strip_offset<StripOrder::by_pair>(0, k / 2);
    for (int64_t begin = 0; begin < rows; begin += kTileRows) {
      pair.pack(begin, std::min(kTileRows, rows - begin), target + begin / kTileRows * kStripSize);
    }
  }
}

/// Where in b's strips of kTileColumns columns a pair of a column lies. Columns behind the last are left as they are:
/// their sums are thrown away.
constexpr int64_t column_offset(int64_t column, int64_t pair) {
  return column / kTileColumns * kTileColumns * kPairs + pair * kTileColumns + column % kTileColumns;
}

template <typename E>
void pack_columns(View<E> b, int64_t columns, int64_t depth, uint32_t* packed) {
  for (int64_t k = 0; k < depth; k += 2) {
    const RowPair<E> pair = row_pair(b.data, b.row_stride, k, depth);
    for (int64_t begin = 0; begin < columns; begin += kPairCount) {
      pair.pack(begin, std::min(kPairCount, columns - begin), packed + column_offset(begin, k / 2));
    }
  }
}

/// (row, pair) becomes (pair, row).
void turn_round(uint32_t (&block)[kPairCount][kPairCount]) {
  if constexpr (kLanes == kPairCount) {
    Vector rows[kLanes];
    std::memcpy(rows, block, sizeof rows);
    transpose(rows);
    std::memcpy(block, rows, sizeof rows);
  } else {
    for (int64_t i = 0; i < kPairCount; ++i) {
      for (int64_t j = 0; j < i; ++j) std::swap(block[i][j], block[j][i]);
    }
  }
}

/// The same where b's columns lie in order in memory.
template <typename E>
void pack_transposed_columns(View<E> b, int64_t columns, int64_t depth, uint32_t* packed) {
  constexpr int64_t kBlock = 2 * kPairCount;  // elements of 16 pairs
  for (int64_t begin = 0; begin < columns; begin += kPairCount) {
    const int64_t count = std::min(kPairCount, columns - begin);
    for (int64_t k = 0; k < depth; k += kBlock) {
      const int64_t length = std::min(kBlock, depth - k);
      alignas(64) uint32_t block[kPairCount][kPairCount];
      for (int64_t column = 0; column < count; ++column) pack_row(b.at(k, begin + column).data, length, block[column]);
      turn_round(block);
      for (int64_t pair = 0; pair < (length + 1) / 2; ++pair) {
        std::memcpy(packed + column_offset(begin, k / 2 + pair), block[pair], sizeof block[pair]);
      }
    }
  }
}

/// sums (kTileRows, vectors x kPairCount) = strip of a times strip of b.
template <StripOrder order, int64_t vectors>
void multiply_strips(int64_t pairs, const uint32_t* a, const uint32_t* b, FloatLanes (&sums)[kTileRows][vectors]) {
  FloatLanes local[kTileRows][vectors] = {};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    PairLanes right[vectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v)
      std::memcpy(&right[v], b + pair * kTileColumns + v * kPairCount, sizeof(right[v]));
#pragma GCC unroll 16
    for (int64_t row = 0; row < kTileRows; ++row) {
      const uint32_t left = a[strip_offset<order>(row, pair)];
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v) local[row][v] = add_pair_products(local[row][v], left, right[v]);
    }
  }
  for (int64_t row = 0; row < kTileRows; ++row) {
    for (int64_t v = 0; v < vectors; ++v) sums[row][v] = local[row][v];
  }
}

/// c (rows, columns) = alpha sums + beta c.
template <int64_t vectors>
void store_tile(const FloatLanes (&sums)[kTileRows][vectors], int64_t rows, int64_t columns, float alpha, float beta,
                float* c, int64_t ldc) {
  for (int64_t row = 0; row < rows; ++row) {
    float* target = c + row * ldc;
    for (int64_t v = 0; v < vectors && v * kPairCount < columns; ++v) {
      const FloatLanes scaled = sums[row][v] * alpha;
      const int64_t count = std::min(kPairCount, columns - v * kPairCount);
      FloatLanes old = {};
      if (beta != 0.0f) std::memcpy(&old, target + v * kPairCount, static_cast<size_t>(count) * sizeof(float));
      const FloatLanes result = beta != 0.0f ? scaled + beta * old : scaled;
      std::memcpy(target + v * kPairCount, &result, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

template <StripOrder order, int64_t vectors>
void compute_tile(int64_t pairs, const uint32_t* a, const uint32_t* b, int64_t rows, int64_t columns, float alpha,
                  float beta, float* c, int64_t ldc) {
  for (int64_t row = 0; row < rows; ++row) {
    __builtin_prefetch(c + row * ldc, 1);
    __builtin_prefetch(c + row * ldc + columns - 1, 1);
  }
  FloatLanes sums[kTileRows][vectors];
  multiply_strips<order, vectors>(pairs, a, b, sums);
  if (rows == kTileRows && columns == vectors * kPairCount) {  // sizes that the compiler knows
    store_tile(sums, kTileRows, vectors * kPairCount, alpha, beta, c, ldc);
  } else {
    store_tile(sums, rows, columns, alpha, beta, c, ldc);
  }
}

template <StripOrder order>
void multiply_blocks(int64_t rows, int64_t columns, int64_t depth, const uint32_t* a, const uint32_t* b, float alpha,
                     float beta, float* c, int64_t ldc) {
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    const int64_t width = std::min(kTileColumns, columns - column);
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const uint32_t* strip = a + row / kTileRows * kStripSize;
      const int64_t height = std::min(kTileRows, rows - row);
      float* tile = c + row * ldc + column;
      if (width > kPairCount) {
        compute_tile<order, kTileVectors>(pairs, strip, b + column * kPairs, height, width, alpha, beta, tile, ldc);
      } else {
        compute_tile<order, 1>(pairs, strip, b + column * kPairs, height, width, alpha, beta, tile, ldc);
      }
    }
  }
}

/// Packed blocks of the calling thread; allocated once.
struct Workspace {
  DeviceBuffer<uint32_t> a{Device{}, kRows* kPairs + kPairCount};
  DeviceBuffer<uint32_t> b{Device{}, kColumns* kPairs + kPairCount};
};

template <typename A, typename B>
void multiply(View<A> a, View<B> b, int64_t m, int64_t n, int64_t k, float alpha, float beta, float* c, int64_t ldc) {
  thread_local Workspace workspace;
  uint32_t* packed_a = workspace.a.data();
  uint32_t* packed_b = workspace.b.data();
  for (int64_t column = 0; column < n; column += kColumns) {
    const int64_t columns = std::min(kColumns, n - column);
    for (int64_t inner = 0; inner < k; inner += kDepth) {
      const int64_t depth = std::min(kDepth, k - inner);
      const float own_beta = inner == 0 ? beta : 1.0f;
      if (b.column_stride == 1) {
        pack_columns(b.at(inner, column), columns, depth, packed_b);
      } else {
        pack_transposed_columns(b.at(inner, column), columns, depth, packed_b);
      }
      for (int64_t row = 0; row < m; row += kRows) {
        const int64_t rows = std::min(kRows, m - row);
        float* block = c + row * ldc + column;
        if (a.column_stride == 1) {
          pack_rows(a.at(row, inner), rows, depth, packed_a);
          multiply_blocks<StripOrder::by_row>(rows, columns, depth, packed_a, packed_b, alpha, own_beta, block, ldc);
        } else {
          pack_transposed_rows(a.at(row, inner), rows, depth, packed_a);
          multiply_blocks<StripOrder::by_pair>(rows, columns, depth, packed_a, packed_b, alpha, own_beta, block, ldc);
        }
      }
    }
  }
}

template <typename E>
View<E> view_of(const E* data, Transpose transpose, int64_t ld) {
  return transpose == Transpose::no ? View<E>{data, ld, 1} : View<E>{data, 1, ld};
}

}  // namespace

void serial_gemm_bf16(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                      ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const auto with_b = [&](auto left) {
    if (b.element() == Element::fp32) {
      multiply(left, view_of(b.fp32(), transpose_b, ldb), m, n, k, alpha, beta, c, ldc);
    } else {
      multiply(left, view_of(b.bf16(), transpose_b, ldb), m, n, k, alpha, beta, c, ldc);
    }
  };
  if (a.element() == Element::fp32) {
    with_b(view_of(a.fp32(), transpose_a, lda));
  } else {
    with_b(view_of(a.bf16(), transpose_a, lda));
  }
}

}  // namespace hat::cpu
