#pragma once
#include <algorithm>
#include <cstdint>

#include "attention_tasks.hpp"
#include "attention_tiles.hpp"

/// The backward pass of attention, task by task.
namespace hat::cpu {

/// Tiles of keys that a task of the backward pass has at most; with all else they fit the second-level cache.
inline int64_t widest_stripe(int64_t head_size) { return head_size > 128 ? 1 : head_size > 64 ? 2 : 4; }

/// Tiles of keys of a task in a document, or segment, of this length. Its queries are packed again for every task, so
/// few are best, but of a long document several threads can have some. The document's results depend on this number, by
/// rounding, so it depends on nothing else.
inline int64_t stripe_tiles(int64_t length, int64_t head_size) {
  const int64_t widest = widest_stripe(head_size);
  const int64_t tiles = tiles_of(length);
  return tiles <= widest ? widest : std::clamp(tiles / 4, std::min<int64_t>(2, widest), widest);
}

inline constexpr int64_t kTaskHeads = 2;  ///< query heads that share the packed keys of a task

/// Tasks that the query heads of one key/value head are split into.
inline int64_t head_tasks(const AttentionShape& shape) {
  return (shape.heads / shape.kv_heads + kTaskHeads - 1) / kTaskHeads;
}

/// Tasks of some keys with the queries that see them.
inline int64_t backward_tasks(const AttentionShape& shape, int64_t keys) {
  const int64_t stripe = stripe_tiles(keys, shape.head_size);
  return (tiles_of(keys) + stripe - 1) / stripe * shape.kv_heads * head_tasks(shape);
}

/// Where the tasks of a document add up their results in a fixed order.
struct BackwardTurns {
  Turns dq;                ///< (query tiles, H) one turn for each stripe
  Turns dk_dv;             ///< (key tiles, K) at the first tile of a stripe, one turn for each of the head tasks
  int64_t first_tile = 0;  ///< of the document, among those of the batch; 0 of a range and of a segment
};

struct BackwardBuffers {
  template <typename Products>
  BackwardBuffers(Carver& carver, const PackedSizes<Products>& sizes, int64_t stripe)
      : k_rows(carver.take(stripe * sizes.rows())),
        v_rows(carver.take(stripe * sizes.rows())),
        k_summed(Products::kPack == 1 ? k_rows : carver.take(stripe * sizes.summed_rows())),
        q(carver.take(sizes.transposed())),
        d_out(carver.take(sizes.transposed())),
        q_summed(carver.take(sizes.summed_rows())),
        d_out_summed(carver.take(sizes.summed_rows())),
        exact(carver.take(kSquare)),
        p_rows(Products::kRounds ? carver.take(kSquare / Products::kPack) : exact),
        ds_rows(carver.take(kSquare / Products::kPack)),
        ds(Products::kPack == 1 ? ds_rows : carver.take(kSquare / Products::kPack)),
        dq(carver.take(sizes.sums())),
        dk(carver.take(stripe * sizes.sums())),
        dv(carver.take(stripe * sizes.sums())),
        shift(carver.take(kTile)),
        delta(carver.take(kTile)) {}
  float* k_rows;
  float* v_rows;
  float* k_summed;
  float* q;      // transposed
  float* d_out;  // transposed
  float* q_summed;
  float* d_out_summed;
  float* exact;    // probabilities (keys, queries) in fp32
  float* p_rows;   // the same as units along queries
  float* ds_rows;  // gradients of the scores as units along queries
  float* ds;       // and across keys
  float* dq;
  float* dk;
  float* dv;
  float* shift;  // (kTile) log2 of the sums of the exponentials
  float* delta;  // (kTile) sum of dP P over the keys, which equals d_out . out
};

/// Probabilities P of a tile and dS = P (dP - delta); the factor 1 / sqrt(D) is left to the end.
template <typename Products>
void score_gradient(const Tile& tile, const PackedSizes<Products>& sizes, float scale, const float* k, const float* v,
                    const BackwardBuffers& buffers) {
  multiply_scores<Products>(tile, sizes, k, buffers.q, [&](int64_t key, int64_t query, auto& sums) {
    const Vector shift[2] = {load(buffers.shift + query), load(buffers.shift + query + kLanes)};
#pragma GCC unroll 12
    for (int r = 0; r < kScoreRows; ++r) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) sums[r][i] = vector_exp2(sums[r][i] * scale - shift[i]);
    }
    hide(tile, key, query, 0.0f, sums);
#pragma GCC unroll 12
    for (int r = 0; r < kScoreRows; ++r) {
      float* row = buffers.exact + (key + r) * kTile + query;
      store(row, sums[r][0]);
      store(row + kLanes, sums[r][1]);
      if constexpr (Products::kRounds) {
        store_along<Products>(buffers.p_rows + ((key + r) * kTile + query) / Products::kPack, sums[r][0], sums[r][1]);
      }
    }
  });
  multiply_scores<Products>(tile, sizes, v, buffers.d_out, [&](int64_t key, int64_t query, auto& sums) {
    const Vector delta[2] = {load(buffers.delta + query), load(buffers.delta + query + kLanes)};
#pragma GCC unroll 12
    for (int r = 0; r < kScoreRows; ++r) {
      const float* p = buffers.exact + (key + r) * kTile + query;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) sums[r][i] = load(p + i * kLanes) * (sums[r][i] - delta[i]);
      store_along<Products>(buffers.ds_rows + ((key + r) * kTile + query) / Products::kPack, sums[r][0], sums[r][1]);
    }
    if constexpr (Products::kPack == 2) {
#pragma GCC unroll 12
      for (int r = 0; r < kScoreRows; r += 2) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          store_across<Products>(buffers.ds + query + i * kLanes, kTile, key + r, sums[r][i], sums[r + 1][i]);
        }
      }
    }
  });
}

/// dq (=, or += after the stripe's first tile of keys), dk and dv += for one square (Dao et al. 2022, algorithm 4).
template <typename Products>
void add_gradients(const Tile& tile, const PackedSizes<Products>& sizes, const float* k_summed, bool first_keys,
                   const BackwardBuffers& buffers, float* dk, float* dv) {
  constexpr int kPack = Products::kPack;
  const auto units = [](int64_t n) { return (n + kPack - 1) / kPack; };
  const int64_t vectors = sizes.columns / kLanes;
  const auto later_queries = [&](int64_t first, int64_t) {
    const int64_t end = units(tile.queries);
    return std::pair(tile.diagonal ? std::min(end, first / kPack) : 0, end);
  };
  const auto sum = [](const float* c, int64_t) { return load(c); };
  multiply<Products, kTile / kPack, 1>(tile.keys, vectors, buffers.p_rows, buffers.d_out_summed, sizes.columns, dv,
                                       sizes.columns, later_queries, sum);
  multiply<Products, kTile / kPack, 1>(tile.keys, vectors, buffers.ds_rows, buffers.q_summed, sizes.columns, dk,
                                       sizes.columns, later_queries, sum);
  multiply<Products, 1, kTile>(
      tile.queries, vectors, buffers.ds, k_summed, sizes.columns, buffers.dq, sizes.columns,
      [&](int64_t, int64_t end) {
        return std::pair(int64_t{0}, units(tile.diagonal ? std::min(tile.keys, end) : tile.keys));
      },
      [&](const float* c, int64_t) { return first_keys ? Vector{} : load(c); });
}

template <typename E>
struct BackwardArrays {
  const E* q;
  const E* k;
  const E* v;
  const E* out;
  const float* log_sum_exp;
  const float* d_out;
  float* dq;
  float* dk;
  float* dv;
};

/// Fetches what pack_queries will read.
template <typename E>
void prefetch_queries(const AttentionShape& shape, const BackwardArrays<E>& arrays, int64_t token, int64_t queries,
                      int64_t head) {
  const int64_t D = shape.head_size;
  const int64_t width = shape.heads * D;
  prefetch_rows(arrays.q + token * shape.q_stride + head * D, shape.q_stride, queries, D);
  prefetch_rows(arrays.d_out + token * width + head * D, width, queries, D);
  prefetch_rows(arrays.out + token * width + head * D, width, queries, D);
}

/// Packs a tile of queries and what belongs to it.
template <typename Products, typename E>
void pack_queries(const AttentionShape& shape, const BackwardArrays<E>& arrays, int64_t token, int64_t queries,
                  int64_t head, const BackwardBuffers& buffers) {
  const int64_t D = shape.head_size;
  const int64_t width = shape.heads * D;
  const E* q = arrays.q + token * shape.q_stride + head * D;
  const float* d_out = arrays.d_out + token * width + head * D;
  const E* out = arrays.out + token * width + head * D;
  pack_transposed<Products>(q, shape.q_stride, queries, D, buffers.q, kTile);
  pack_summed_rows<Products>(q, shape.q_stride, queries, D, buffers.q_summed);
  pack_transposed<Products>(d_out, width, queries, D, buffers.d_out, kTile);
  pack_summed_rows<Products>(d_out, width, queries, D, buffers.d_out_summed);
  const float* log_sum_exp = arrays.log_sum_exp + head * shape.tokens + token;
  std::fill_n(buffers.shift, kTile, 0.0f);
  for (int64_t r = 0; r < queries; ++r) buffers.shift[r] = log_sum_exp[r] * static_cast<float>(kLog2E);
  // d_out as the products see it, so that the rows of dS still sum to zero.
  for (int64_t first = 0; first < kTile; first += kLanes) {
    Vector sums[kLanes] = {};
    for (int64_t r = 0; r < std::min(kLanes, queries - first); ++r) {
      const float* x = d_out + (first + r) * width;
      const E* y = out + (first + r) * width;
      for (int64_t c = 0; c < D; c += kLanes) {
        sums[r] += load_some_floats<E>(x + c, D - c) * load_some_floats<E>(y + c, D - c);
      }
    }
    transpose(sums);
    for (int64_t r = 1; r < kLanes; ++r) sums[0] += sums[r];
    store(buffers.delta + first, sums[0]);
  }
}

/// to (rows, D) = scale from, or += .
inline void write_gradient(const float* from, int64_t from_stride, int64_t rows, int64_t D, float scale, bool add,
                           float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = from + r * from_stride;
    float* y = to + r * to_stride;
#pragma omp simd
    for (int64_t i = 0; i < D; ++i) y[i] = (add ? y[i] : 0.0f) + scale * x[i];
  }
}

/// A task is a stripe of keys of one key/value head, with some query heads of its group and all their queries that see
/// the stripe. dq gets its summand when the stripes before have given theirs, dk and dv when the heads before have.
template <typename Products, typename E>
void backward_task(const AttentionShape& shape, const Encounter& of, int64_t task, const BackwardArrays<E>& arrays,
                   const BackwardBuffers& buffers, const BackwardTurns& turns) {
  const PackedSizes<Products> sizes(shape.head_size);
  const int64_t D = shape.head_size;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t heads_before = task % head_tasks(shape) * kTaskHeads;
  const int64_t kv_head = task / head_tasks(shape) % shape.kv_heads;
  const int64_t stripe = task / head_tasks(shape) / shape.kv_heads;
  const int64_t first_head = kv_head * group + heads_before;
  const int64_t last_head = std::min(first_head + kTaskHeads, (kv_head + 1) * group);
  const int64_t first = stripe * stripe_tiles(of.keys, D);
  const int64_t last = std::min(tiles_of(of.keys), first + stripe_tiles(of.keys, D));
  const int64_t query_tiles = tiles_of(of.queries);
  const auto keys_of = [&](int64_t tile) { return std::min(kTile, of.keys - tile * kTile); };
  const auto queries_of = [&](int64_t tile) { return std::min(kTile, of.queries - tile * kTile); };
  const auto key_offset = [&](int64_t tile) { return (of.first_key + tile * kTile) * shape.kv_stride + kv_head * D; };
  const auto scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(D)));

  for (int64_t j = first; j < last; ++j) {
    const int64_t row = key_offset(j);
    pack_rows<Products>(arrays.k + row, shape.kv_stride, keys_of(j), D, buffers.k_rows + (j - first) * sizes.rows(),
                        sizes.row);
    pack_rows<Products>(arrays.v + row, shape.kv_stride, keys_of(j), D, buffers.v_rows + (j - first) * sizes.rows(),
                        sizes.row);
    if constexpr (Products::kPack == 2) {
      pack_summed_rows<Products>(arrays.k + row, shape.kv_stride, keys_of(j), D,
                                 buffers.k_summed + (j - first) * sizes.summed_rows());
    }
  }
  std::fill_n(buffers.dk, (last - first) * sizes.sums(), 0.0f);
  std::fill_n(buffers.dv, (last - first) * sizes.sums(), 0.0f);

  for (int64_t head = first_head; head < last_head; ++head) {
    for (int64_t i = of.causal ? first : 0; i < query_tiles; ++i) {
      const int64_t query = of.first_query + i * kTile;
      float* dq = arrays.dq + query * shape.q_stride + head * D;
      pack_queries<Products>(shape, arrays, query, queries_of(i), head, buffers);
      prefetch_rows<Fetch::to_write>(dq, shape.q_stride, queries_of(i), D);
      if (i + 1 < query_tiles) prefetch_queries(shape, arrays, query + kTile, queries_of(i + 1), head);
      for (int64_t j = first; j < (of.causal ? std::min(last, i + 1) : last); ++j) {
        const Tile tile{keys_of(j), queries_of(i), of.causal && i == j};
        const int64_t t = j - first;
        score_gradient<Products>(tile, sizes, scale, buffers.k_rows + t * sizes.rows(),
                                 buffers.v_rows + t * sizes.rows(), buffers);
        add_gradients<Products>(tile, sizes, buffers.k_summed + t * sizes.summed_rows(), j == first, buffers,
                                buffers.dk + t * sizes.sums(), buffers.dv + t * sizes.sums());
      }
      const int64_t turn = (turns.first_tile + i) * shape.heads + head;
      turns.dq.wait(turn, static_cast<int32_t>(stripe));
      write_gradient(buffers.dq, sizes.columns, queries_of(i), D, score_scale(shape), stripe > 0 || !of.first, dq,
                     shape.q_stride);
      turns.dq.pass_on(turn);
    }
  }
  const int64_t turn = (turns.first_tile + first) * shape.kv_heads + kv_head;
  turns.dk_dv.wait(turn, static_cast<int32_t>(heads_before / kTaskHeads));
  for (int64_t j = first; j < last; ++j) {
    const int64_t t = (j - first) * sizes.sums();
    const int64_t to = key_offset(j);
    const bool add = heads_before > 0;
    prefetch_rows<Fetch::to_write>(arrays.dk + to, shape.kv_stride, keys_of(j), D);
    prefetch_rows<Fetch::to_write>(arrays.dv + to, shape.kv_stride, keys_of(j), D);
    write_gradient(buffers.dk + t, sizes.columns, keys_of(j), D, score_scale(shape), add, arrays.dk + to,
                   shape.kv_stride);
    write_gradient(buffers.dv + t, sizes.columns, keys_of(j), D, 1.0f, add, arrays.dv + to, shape.kv_stride);
  }
  turns.dk_dv.pass_on(turn);
}

}  // namespace hat::cpu
