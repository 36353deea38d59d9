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
  E* out;
  float* log_sum_exp;
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

/// The tiles of queries of a document and key/value head are numbered query by query, the heads of the group inside.
/// A task is kQueryTiles of them, and the last ones, which see most keys, come first.
template <typename Products, typename E>
void forward_task(const AttentionShape& shape, int64_t document, int64_t task, const ForwardArrays<E>& arrays,
                  const ForwardBuffers& buffers) {
  const PackedSizes<Products> sizes(shape.head_size);
  const int64_t D = shape.head_size;
  const int64_t begin = shape.offsets[document];
  const int64_t length = shape.offsets[document + 1] - begin;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t kv_head = task % shape.kv_heads;
  const int64_t all = tiles_of(length) * group;
  const int64_t last = all - task / shape.kv_heads * kQueryTiles;
  const int64_t first = std::max<int64_t>(0, last - kQueryTiles);
  const auto scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(D)));
  const auto for_each_state = [&](const auto& visit) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t query = i / group * kTile;
      visit(buffers.states[i - first], query, std::min(kTile, length - query), kv_head * group + i % group);
    }
  };
  for_each_state([&](const QueryState& state, int64_t query, int64_t queries, int64_t head) {
    pack_transposed<Products>(arrays.q + (begin + query) * shape.qkv_stride + head * D, shape.qkv_stride, queries, D,
                              state.q, kTile);
    prefetch_rows<Fetch::to_write>(arrays.out + (begin + query) * shape.heads * D + head * D, shape.heads * D, queries,
                                   D);
    std::fill_n(state.out, sizes.sums(), 0.0f);
    std::fill_n(state.maxima, kTile, kHidden);
    std::fill_n(state.sums, kTile, 0.0f);
  });
  for (int64_t key = 0; key <= (last - 1) / group * kTile; key += kTile) {
    const int64_t keys = std::min(kTile, length - key);
    const int64_t row = (begin + key) * shape.qkv_stride + kv_head * D;
    pack_rows<Products>(arrays.k + row, shape.qkv_stride, keys, D, buffers.k, sizes.row);
    pack_summed_rows<Products>(arrays.v + row, shape.qkv_stride, keys, D, buffers.v);
    if (key + kTile <= (last - 1) / group * kTile) {
      const int64_t next = row + kTile * shape.qkv_stride;
      prefetch_rows(arrays.k + next, shape.qkv_stride, std::min(kTile, length - key - kTile), D);
      prefetch_rows(arrays.v + next, shape.qkv_stride, std::min(kTile, length - key - kTile), D);
    }
    for_each_state([&](const QueryState& state, int64_t query, int64_t queries, int64_t) {
      if (key <= query) attend<Products>({keys, queries, key == query}, sizes, scale, buffers, state);
    });
  }
  for_each_state([&](const QueryState& state, int64_t query, int64_t queries, int64_t head) {
    finish_queries(state, queries, D, sizes.columns, score_scale(shape),
                   arrays.out + (begin + query) * shape.heads * D + head * D, shape.heads * D,
                   arrays.log_sum_exp + head * shape.tokens + begin + query);
  });
}

}  // namespace hat::cpu
