#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "attention_tasks.hpp"
#include "attention_tiles.hpp"
#include "elements.hpp"

/// The forward pass of attention, task by task.
namespace hat::cpu {

inline constexpr int64_t kQueryTiles = 4;  // that share the packed keys and values in the forward pass

/// What a thread keeps of one tile of queries while it meets the keys.
struct QueryState {
  float* q = nullptr;       ///< transposed
  float* out = nullptr;     ///< (queries, D), not yet divided by the sums
  float* maxima = nullptr;  ///< (kTile) of the scores, before their scaling
  float* sums = nullptr;    ///< (kTile) of exp(score - maximum)
};

struct ForwardBuffers {
  template <typename Products>
  ForwardBuffers(Carver& carver, const PackedSizes<Products>& sizes)
      : k(carver.take(sizes.rows())),
        v(carver.take(sizes.summed_rows())),
        scores(carver.take(kSquare)),
        corrections(carver.take(kTile)) {
    for (QueryState& state : states) {
      state = {carver.take(sizes.transposed()), carver.take(sizes.sums()), carver.take(kTile), carver.take(kTile)};
    }
  }
  float* k;            // rows
  float* v;            // summed rows
  float* scores;       // (keys, queries), later the probabilities as units across keys
  float* corrections;  // (kTile) factors that bring earlier results to the new maxima
  QueryState states[kQueryTiles];
};

/// Running softmax (Milakov, Gimelshein 2018) of a tile of scores, which become exp(score - maximum) as units
/// across keys. corrections holds the earlier maxima and becomes the factors. In powers of two: scale holds log2(e).
template <typename Products>
void absorb_scores(const Tile& tile, float scale, float* scores, float* corrections, const QueryState& state) {
  for (int64_t query = 0; query < round_up(tile.queries, kPair); query += kLanes) {
    const int64_t pair_end = query / kPair * kPair + kPair;
    const int64_t keys = tile.diagonal ? std::min(tile.keys, pair_end + kRowMultiple / 2) : tile.keys;
    float* column = scores + query;
    const Vector maximum = load(state.maxima + query) * scale;
    Vector sums[2] = {};
    for (int64_t key = 0; key < round_up(keys, kScoreRows); key += 2) {
      const Vector first = vector_exp2(load(column + key * kTile) * scale - maximum);
      const Vector second = vector_exp2(load(column + (key + 1) * kTile) * scale - maximum);
      sums[0] += first;
      sums[1] += second;
      store_across<Products>(column, kTile, key, first, second);
    }
    // The difference first: exactly 1 for a maximum that stays, or thousands of tiles would add up its rounding error.
    const Vector correction = vector_exp2((load(corrections + query) - load(state.maxima + query)) * scale);
    store(corrections + query, correction);
    store(state.sums + query, load(state.sums + query) * correction + (sums[0] + sums[1]));
  }
}

/// One tile of keys and values for one tile of queries.
template <typename Products>
void attend(const Tile& tile, const PackedSizes<Products>& sizes, float scale, const ForwardBuffers& buffers,
            const QueryState& state) {
  std::copy_n(state.maxima, kTile, buffers.corrections);
  multiply_scores<Products>(tile, sizes, buffers.k, state.q, [&](int64_t key, int64_t query, auto& sums) {
    hide(tile, key, query, kHidden, sums);
    Vector maxima[2] = {load(state.maxima + query), load(state.maxima + query + kLanes)};
#pragma GCC unroll 12
    for (int r = 0; r < kScoreRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        store(buffers.scores + (key + r) * kTile + query + v * kLanes, sums[r][v]);
        maxima[v] = max(maxima[v], sums[r][v]);
      }
    }
    store(state.maxima + query, maxima[0]);
    store(state.maxima + query + kLanes, maxima[1]);
  });
  absorb_scores<Products>(tile, scale, buffers.scores, buffers.corrections, state);
  const int64_t steps = (tile.keys + Products::kPack - 1) / Products::kPack;
  multiply<Products, 1, kTile>(
      tile.queries, sizes.columns / kLanes, buffers.scores, buffers.v, sizes.columns, state.out, sizes.columns,
      [&](int64_t, int64_t end) {
        return std::pair(int64_t{0},
                         tile.diagonal ? std::min(steps, (end + Products::kPack - 1) / Products::kPack) : steps);
      },
      [&](const float* c, int64_t row) { return load(c) * broadcast(buffers.corrections[row]); });
}

template <typename E>
struct ForwardArrays {
  const E* q;
  const E* k;
  const E* v;
};

/// Divides a tile of results by the sums.
template <typename E>
void finish_queries(const QueryState& state, int64_t queries, int64_t head_size, int64_t columns, float scale, E* out,
                    int64_t out_stride, float* log_sum_exp) {
  for (int64_t r = 0; r < queries; ++r) {
    const float* sums = state.out + r * columns;
    const float inverse = 1.0f / state.sums[r];
    E* out_row = out + r * out_stride;
#pragma omp simd
    for (int64_t i = 0; i < head_size; ++i) write(sums[i] * inverse, out_row + i);
    log_sum_exp[r] = state.maxima[r] * scale + std::log(state.sums[r]);
  }
}

/// Rows [row, row + queries) of a head: what one QueryState is of.
struct QueryRows {
  int64_t row;
  int64_t queries;
  int64_t head;
};

inline void clear(const QueryState& state, int64_t sums) {
  std::fill_n(state.out, sums, 0.0f);
  std::fill_n(state.maxima, kTile, kHidden);
  std::fill_n(state.sums, kTile, 0.0f);
}

/// Where the queries of whole documents begin and end: with nothing, and with their results.
template <typename E>
class FinishedRows {
 public:
  FinishedRows(const AttentionShape& shape, E* out, float* log_sum_exp)
      : shape_(shape), out_(out), log_sum_exp_(log_sum_exp) {}

  template <typename Products>
  void begin(const PackedSizes<Products>& sizes, const QueryRows& rows, const QueryState& state) const {
    prefetch_rows<Fetch::to_write>(out(rows), width(), rows.queries, shape_.head_size);
    clear(state, sizes.sums());
  }
  template <typename Products>
  void end(const PackedSizes<Products>& sizes, const QueryRows& rows, const QueryState& state) const {
    write(state, sizes.columns, rows);
  }
  /// The results of a state whose rows of `out` are so many floats apart.
  void write(const QueryState& state, int64_t columns, const QueryRows& rows) const {
    finish_queries(state, rows.queries, shape_.head_size, columns, score_scale(shape_), out(rows), width(),
                   log_sum_exp_ + rows.head * shape_.tokens + rows.row);
  }

 private:
  int64_t width() const { return shape_.heads * shape_.head_size; }
  E* out(const QueryRows& rows) const { return out_ + rows.row * width() + rows.head * shape_.head_size; }

  const AttentionShape& shape_;
  E* out_;
  float* log_sum_exp_;
};

/// Where the queries of a range begin and end: with what they know of other segments.
class KeptRows {
 public:
  KeptRows(const AttentionShape& shape, const AttentionState& kept, bool first)
      : shape_(shape), kept_(kept), first_(first) {}

  template <typename Products>
  void begin(const PackedSizes<Products>& sizes, const QueryRows& rows, const QueryState& state) const {
    prefetch_rows<Fetch::to_write>(sums(rows), width(), rows.queries, shape_.head_size);
    clear(state, sizes.sums());
    if (first_) return;
    for (int64_t r = 0; r < rows.queries; ++r) {
      std::copy_n(sums(rows) + r * width(), shape_.head_size, state.out + r * sizes.columns);
    }
    std::copy_n(kept_.maxima + in_head(rows), rows.queries, state.maxima);
    std::copy_n(kept_.divisors + in_head(rows), rows.queries, state.sums);
  }
  template <typename Products>
  void end(const PackedSizes<Products>& sizes, const QueryRows& rows, const QueryState& state) const {
    for (int64_t r = 0; r < rows.queries; ++r) {
      std::copy_n(state.out + r * sizes.columns, shape_.head_size, sums(rows) + r * width());
    }
    std::copy_n(state.maxima, rows.queries, kept_.maxima + in_head(rows));
    std::copy_n(state.sums, rows.queries, kept_.divisors + in_head(rows));
  }
  /// The rows where they are kept, as a state without q, its rows width() apart.
  QueryState in_place(const QueryRows& rows) const {
    return {.q = nullptr,
            .out = sums(rows),
            .maxima = kept_.maxima + in_head(rows),
            .sums = kept_.divisors + in_head(rows)};
  }
  int64_t width() const { return shape_.heads * shape_.head_size; }

 private:
  int64_t in_head(const QueryRows& rows) const { return rows.head * shape_.tokens + rows.row; }
  float* sums(const QueryRows& rows) const { return kept_.sums + rows.row * width() + rows.head * shape_.head_size; }

  const AttentionShape& shape_;
  const AttentionState& kept_;
  bool first_;
};

/// Tasks of the queries that meet some keys.
inline int64_t forward_tasks(const AttentionShape& shape, int64_t queries) {
  const int64_t tiles = tiles_of(queries) * (shape.heads / shape.kv_heads);
  return (tiles + kQueryTiles - 1) / kQueryTiles * shape.kv_heads;
}

/// The tiles of queries of a document, or range, and key/value head are numbered query by query, the heads of the group
/// inside. A task is kQueryTiles of them, and the last ones, which see most keys of a document, come first.
template <typename Products, typename E, typename Rows>
void forward_task(const AttentionShape& shape, const Encounter& of, int64_t task, const ForwardArrays<E>& arrays,
                  const Rows& rows, const ForwardBuffers& buffers) {
  const PackedSizes<Products> sizes(shape.head_size);
  const int64_t D = shape.head_size;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t kv_head = task % shape.kv_heads;
  const int64_t all = tiles_of(of.queries) * group;
  const int64_t last = all - task / shape.kv_heads * kQueryTiles;
  const int64_t first = std::max<int64_t>(0, last - kQueryTiles);
  const auto scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(D)));
  const auto for_each_state = [&](const auto& visit) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t query = i / group * kTile;
      visit(buffers.states[i - first], query,
            QueryRows{of.first_query + query, std::min(kTile, of.queries - query), kv_head * group + i % group});
    }
  };
  for_each_state([&](const QueryState& state, int64_t, const QueryRows& of_state) {
    pack_transposed<Products>(arrays.q + of_state.row * shape.q_stride + of_state.head * D, shape.q_stride,
                              of_state.queries, D, state.q, kTile);
    rows.begin(sizes, of_state, state);
  });
  const int64_t seen = of.causal ? std::min(of.keys, (last - 1) / group * kTile + kTile) : of.keys;
  for (int64_t key = 0; key < seen; key += kTile) {
    const int64_t keys = std::min(kTile, of.keys - key);
    const int64_t row = (of.first_key + key) * shape.kv_stride + kv_head * D;
    pack_rows<Products>(arrays.k + row, shape.kv_stride, keys, D, buffers.k, sizes.row);
    pack_summed_rows<Products>(arrays.v + row, shape.kv_stride, keys, D, buffers.v);
    if (key + kTile < seen) {
      const int64_t next = row + kTile * shape.kv_stride;
      prefetch_rows(arrays.k + next, shape.kv_stride, std::min(kTile, of.keys - key - kTile), D);
      prefetch_rows(arrays.v + next, shape.kv_stride, std::min(kTile, of.keys - key - kTile), D);
    }
    for_each_state([&](const QueryState& state, int64_t query, const QueryRows& of_state) {
      if (of.causal && key > query) return;
      attend<Products>({keys, of_state.queries, of.causal && key == query}, sizes, scale, buffers, state);
    });
  }
  for_each_state(
      [&](const QueryState& state, int64_t, const QueryRows& of_state) { rows.end(sizes, of_state, state); });
}

}  // namespace hat::cpu
