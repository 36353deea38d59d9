#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hat/kernels/operations.hpp"
#include "tile_packing.hpp"
#include "tile_products.hpp"

/// What the forward and the backward pass of attention have in common: the tiles of the score matrix.
namespace hat::cpu {

// The score matrix of a document is cut into squares of kTile x kTile; one is either below the diagonal or on it. All
// tiles of scores are stored transposed, (keys, queries): then a vector holds one key's scores with neighbouring
// queries, and softmax needs no sums within a vector.
inline constexpr int64_t kTile = 96;
inline constexpr int64_t kSquare = kTile * kTile;
inline constexpr int64_t kPair = 2 * kLanes;      // queries that are computed together
inline constexpr int kScoreRows = block_rows(2);  // keys that are
static_assert(kTile % kRowMultiple == 0 && kTile % kPair == 0 && kRowMultiple % kScoreRows == 0);

inline constexpr float kHidden = -1e30f;  // a score whose exponential is 0, far enough from infinity to compute with
inline constexpr double kLog2E = 1.4426950408889634;

inline int64_t tiles_of(int64_t length) { return (length + kTile - 1) / kTile; }

/// Rows of queries that meet rows of keys: a document, or a range of one with a segment of it.
struct Encounter {
  int64_t first_query = 0;
  int64_t queries = 0;
  int64_t first_key = 0;
  int64_t keys = 0;
  bool causal = true;  ///< queries and keys are the same tokens; otherwise every query sees every key
  bool first = true;   ///< of those queries
};

inline Encounter whole_document(const AttentionShape& shape, int64_t document) {
  const int64_t begin = shape.offsets[document];
  const int64_t length = shape.offsets[document + 1] - begin;
  return {.first_query = begin, .queries = length, .first_key = begin, .keys = length, .causal = true, .first = true};
}

inline Encounter with_segment(const AttentionShape& shape, const AttentionSegment& segment) {
  return {.first_query = 0,
          .queries = shape.tokens,
          .first_key = 0,
          .keys = segment.keys,
          .causal = segment.causal,
          .first = segment.first};
}

inline float score_scale(const AttentionShape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.head_size)); }

/// Sizes of the packed tiles, in floats.
template <typename Products>
struct PackedSizes {
  explicit PackedSizes(int64_t head_size)
      : units(head_size / Products::kPack), row(round_up(units, kLanes)), columns(round_up(head_size, kLanes)) {}
  int64_t units;                                ///< that a row of q or k is summed over
  int64_t row;                                  ///< a row of units, in whole vectors
  int64_t columns;                              ///< D in whole vectors
  int64_t rows() const { return kTile * row; }  ///< a tile packed by rows
  int64_t transposed() const { return units * kTile; }
  int64_t summed_rows() const { return kTile / Products::kPack * columns; }
  int64_t sums() const { return kTile * columns; }  ///< a tile of results in fp32
};

/// A square tile of scores.
struct Tile {
  int64_t keys = 0;
  int64_t queries = 0;
  bool diagonal = false;  ///< key and query tile are the same tokens
};

/// Products of a tile of keys with one of queries, (keys, queries) = rows columns^T, without what the diagonal hides.
/// finish(key, query, sums) gets blocks of kScoreRows keys with kPair queries; those just above the diagonal as well,
/// with any finite sums, because the products with the results read a little beyond it.
template <typename Products, typename Finish>
void multiply_scores(const Tile& tile, const PackedSizes<Products>& sizes, const float* rows, const float* columns,
                     const Finish& finish) {
  for (int64_t query = 0; query < tile.queries; query += kPair) {
    const float* b = columns + query;
    const int64_t seen = tile.diagonal ? std::min(tile.keys, query + kPair) : tile.keys;
    const int64_t finished = tile.diagonal ? std::min(tile.keys, query + kPair + kRowMultiple / 2) : tile.keys;
    for (int64_t key = 0; key < finished; key += kScoreRows) {
      const float* a = rows + key * sizes.row;
      Vector sums[kScoreRows][2] = {};
      const bool right_only = tile.diagonal && key >= query + kLanes;
      if (key < seen && right_only) {
        Vector right[kScoreRows][1] = {};
        multiply_add_block<Products>(sizes.units, a, sizes.row, 1, b + kLanes, kTile, right);
#pragma GCC unroll 12
        for (int r = 0; r < kScoreRows; ++r) sums[r][1] = right[r][0];
      } else if (key < seen) {
        multiply_add_block<Products>(sizes.units, a, sizes.row, 1, b, kTile, sums);
      }
      finish(key, query, sums);
    }
  }
}

/// Puts `value` where the key of a row is younger than the query of a lane, or does not exist: off the diagonal, a
/// segment's last tile of keys may be short.
[[gnu::always_inline]] inline void hide(const Tile& tile, int64_t key, int64_t query, float value,
                                        Vector (&sums)[kScoreRows][2]) {
  if (!tile.diagonal) {
    if (key + kScoreRows <= tile.keys) return;
#pragma GCC unroll 12
    for (int r = 0; r < kScoreRows; ++r) {
      if (key + r >= tile.keys) sums[r][0] = sums[r][1] = broadcast(value);
    }
    return;
  }
  if (key + kScoreRows - 1 <= query) return;
#pragma GCC unroll 12
  for (int r = 0; r < kScoreRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const auto first_visible = static_cast<int32_t>(key + r - query - v * kLanes);
      sums[r][v] = lane_numbers() < first_visible ? broadcast(value) : sums[r][v];
    }
  }
}

}  // namespace hat::cpu
