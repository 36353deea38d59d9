// Matrix products with bf16 operands and fp32 sums, after Goto, van de Geijn 2008: blocks of both operands are packed
// so that the inner loop reads them in order. Packing rounds to bf16, so operands may be stored in fp32; and no code is
// made for a shape at run time, so units of any length cost the same.
#include <algorithm>

#include "hat/device/device_buffer.hpp"
#include "serial_gemm.hpp"
#include "tile_packing.hpp"
#include "tile_products.hpp"

namespace hat::cpu {

namespace {

using Products = Bf16Products;
constexpr int64_t kPack = Products::kPack;

// A tile of c: kTileRows x kTileColumns sums in registers.
constexpr int kTileVectors = 2;
constexpr int kTileRows = block_rows(kTileVectors);
constexpr int64_t kTileColumns = int64_t{kTileVectors} * kLanes;
// Blocks: a strip of b (kDepth x kTileColumns) stays in the first cache, the block of a in the second, that of b in the
// third.
constexpr int64_t kDepth = 512;
constexpr int64_t kUnits = kDepth / kPack;
constexpr int64_t kRows = int64_t{36} * kTileRows;
constexpr int64_t kColumns = 128 * kTileColumns;
// Strips of a and b. Whole vectors are stored at the end of a strip of a, beyond its rows.
constexpr int64_t kStripOfA = kTileRows * kUnits + kLanes;
constexpr int64_t kStripOfB = kTileColumns * kUnits;

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

int64_t units_of(int64_t depth) { return (depth + kPack - 1) / kPack; }

/// Units of `count` columns across the rows of memory k, k + 1, ... of `depth`, at most kLanes of them. Stores a whole
/// vector.
template <typename Units, typename E>
void pack_across(const E* x, int64_t stride, int64_t k, int64_t depth, int64_t count, float* packed) {
  E rows[Units::kPack][kLanes] = {};
  const E* sources[Units::kPack];
  for (int64_t i = 0; i < Units::kPack; ++i) {
    const bool there = k + i < depth;
    sources[i] = there ? x + (k + i) * stride : rows[i];
    if (!there || count >= kLanes) continue;
    std::copy_n(sources[i], count, rows[i]);
    sources[i] = rows[i];
  }
  if constexpr (Units::kPack == 2) {
    store(packed, Units::across(sources[0], sources[1]));
  } else {
    store(packed, Units::load_units(sources[0]));
  }
}

// Where k goes down the rows of memory, whole rows are gone along: their distance may be a power of two, and then they
// meet in one cache set.

/// Strips of a, unit by unit: a's columns lie in order in memory.
template <typename E>
void pack_rows_across(View<E> a, int64_t rows, int64_t depth, float* packed) {
  for (int64_t k = 0; k < depth; k += kPack) {
    for (int64_t first = 0; first < rows; first += kTileRows) {
      float* to = packed + first / kTileRows * kStripOfA + k / kPack * kTileRows;
      // What is stored beyond the strip's rows belongs to the next unit, which is written later.
      for (int64_t row = 0; row < std::min<int64_t>(kTileRows, rows - first); row += kLanes) {
        pack_across<Products>(a.data + first + row, a.column_stride, k, depth, rows - first - row, to + row);
      }
    }
  }
}

/// Strips of a, row by row: a's rows lie in order in memory.
template <typename E>
void pack_rows_along(View<E> a, int64_t rows, int64_t depth, float* packed) {
  for (int64_t row = 0; row < rows; ++row) {
    float* to = packed + row / kTileRows * kStripOfA + row % kTileRows * kUnits;
    const E* from = a.at(row, 0).data;
    for (int64_t k = 0; k < depth; k += kLanes * kPack) {
      store(to + k / kPack, load_some_units<Products>(from + k, depth - k));
    }
  }
}

/// Strips of b, unit by unit. Columns behind the last are sums that are thrown away.
template <typename E>
void pack_columns(View<E> b, int64_t columns, int64_t depth, float* packed) {
  if (b.column_stride == 1) {
    for (int64_t k = 0; k < depth; k += kPack) {
      for (int64_t first = 0; first < columns; first += kLanes) {
        pack_across<Products>(
            b.data + first, b.row_stride, k, depth, columns - first,
            packed + first / kTileColumns * kStripOfB + k / kPack * kTileColumns + first % kTileColumns);
      }
    }
    return;
  }
  for (int64_t first = 0; first < columns; first += kTileColumns) {
    pack_transposed<Products>(b.at(0, first).data, b.column_stride, std::min(kTileColumns, columns - first), depth,
                              packed + first / kTileColumns * kStripOfB, kTileColumns);
  }
}

/// How c gets the sums: c (rows, columns) = alpha sums + beta c.
struct Output {
  float alpha;
  float beta;
  float* c;
  int64_t ldc;
  Output at(int64_t row, int64_t column) const { return {alpha, beta, c + row * ldc + column, ldc}; }
};

void store_vector(const Output& out, Vector sums, float* c, int64_t count) {
  Vector result = sums * out.alpha;
  if (count >= kLanes) {
    if (out.beta != 0.0f) result += out.beta * load(c);
    store(c, result);
    return;
  }
  for (int64_t i = 0; i < count; ++i) c[i] = out.beta != 0.0f ? result[i] + out.beta * c[i] : result[i];
}

template <int64_t ARow, int64_t AStep>
void compute_tile(int64_t units, const float* a, const float* b, int64_t rows, int64_t columns, const Output& out) {
  prefetch_rows<Fetch::to_write>(out.c, out.ldc, rows, columns);
  Vector sums[kTileRows][kTileVectors] = {};
  multiply_add_block<Products>(units, a, ARow, AStep, b, kTileColumns, sums);
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row) {
    if (row >= rows) return;
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      store_vector(out, sums[row][v], out.c + row * out.ldc + v * kLanes, columns - v * kLanes);
    }
  }
}

template <int64_t ARow, int64_t AStep>
void multiply_blocks(int64_t rows, int64_t columns, int64_t depth, const float* a, const float* b, const Output& out) {
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    for (int64_t row = 0; row < rows; row += kTileRows) {
      compute_tile<ARow, AStep>(units_of(depth), a + row / kTileRows * kStripOfA, b + column / kTileColumns * kStripOfB,
                                std::min<int64_t>(kTileRows, rows - row), std::min(kTileColumns, columns - column),
                                out.at(row, column));
    }
  }
}

/// Packed blocks of the calling thread; allocated once.
struct Workspace {
  DeviceBuffer<float> a{Device{}, kRows / kTileRows* kStripOfA};
  DeviceBuffer<float> b{Device{}, kColumns / kTileColumns* kStripOfB};
};
Workspace& workspace_of_thread() {
  thread_local Workspace workspace;
  return workspace;
}

template <typename A, typename B>
void multiply_views(View<A> a, View<B> b, int64_t m, int64_t n, int64_t k, Output out) {
  Workspace& workspace = workspace_of_thread();
  float* packed_a = workspace.a.data();
  float* packed_b = workspace.b.data();
  for (int64_t inner = 0; inner < k; inner += kDepth) {
    const int64_t depth = std::min(kDepth, k - inner);
    for (int64_t column = 0; column < n; column += kColumns) {
      const int64_t columns = std::min(kColumns, n - column);
      pack_columns(b.at(inner, column), columns, depth, packed_b);
      for (int64_t row = 0; row < m; row += kRows) {
        const int64_t rows = std::min(kRows, m - row);
        if (a.column_stride == 1) {
          pack_rows_along(a.at(row, inner), rows, depth, packed_a);
          multiply_blocks<kUnits, 1>(rows, columns, depth, packed_a, packed_b, out.at(row, column));
        } else {
          pack_rows_across(a.at(row, inner), rows, depth, packed_a);
          multiply_blocks<1, kTileRows>(rows, columns, depth, packed_a, packed_b, out.at(row, column));
        }
      }
    }
    out.beta = 1.0f;
  }
}

template <typename E>
View<E> view_of(const E* data, Transpose transpose, int64_t ld) {
  return transpose == Transpose::no ? View<E>{data, ld, 1} : View<E>{data, 1, ld};
}

}  // namespace

void serial_gemm_bf16(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                      ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const Output out{alpha, beta, c, ldc};
  const auto with_b = [&](auto left) {
    if (b.element() == Element::fp32) {
      multiply_views(left, view_of(b.fp32(), transpose_b, ldb), m, n, k, out);
    } else {
      multiply_views(left, view_of(b.bf16(), transpose_b, ldb), m, n, k, out);
    }
  };
  if (a.element() == Element::fp32) {
    with_b(view_of(a.fp32(), transpose_a, lda));
  } else {
    with_b(view_of(a.bf16(), transpose_a, lda));
  }
}

}  // namespace hat::cpu
