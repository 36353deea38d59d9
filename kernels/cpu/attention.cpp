#include <omp.h>

#include <algorithm>
#include <cmath>

#include "attention_tasks.hpp"
#include "cpu_kernels.hpp"
#include "tile_packing.hpp"
#include "tile_products.hpp"

namespace hat::cpu {

namespace {

// The score matrix of a document is cut into squares of kTile x kTile; one is either below the diagonal or on it. All
// tiles of scores are stored transposed, (keys, queries): then a vector holds one key's scores with neighbouring
// queries, and softmax needs no sums within a vector.
constexpr int64_t kTile = 96;
constexpr int64_t kSquare = kTile * kTile;
constexpr int64_t kPair = int64_t{2} * kLanes;  // queries that are computed together
constexpr int kScoreRows = block_rows(2);       // keys that are
static_assert(kTile % kRowMultiple == 0 && kTile % kPair == 0 && kRowMultiple % kScoreRows == 0);

constexpr int64_t kQueryTiles = 4;  // that share the packed keys and values in the forward pass
constexpr float kHidden = -1e30f;   // a score whose exponential is 0, far enough from infinity to compute with
constexpr double kLog2E = 1.4426950408889634;

int64_t tiles_of(int64_t length) { return (length + kTile - 1) / kTile; }

/// Tiles of keys that a task of the backward pass has at most; with all else they fit the second-level cache.
int64_t widest_stripe(int64_t head_size) { return head_size > 128 ? 1 : head_size > 64 ? 2 : 4; }

/// Tiles of keys of a task in a document of this length. Its queries are packed again for every task, so few are best,
/// but of a long document several threads can have some. The document's results depend on this number, by rounding, so
/// it depends on nothing else.
int64_t stripe_tiles(int64_t length, int64_t head_size) {
  const int64_t widest = widest_stripe(head_size);
  const int64_t tiles = tiles_of(length);
  return tiles <= widest ? widest : std::clamp(tiles / 4, std::min<int64_t>(2, widest), widest);
}

float score_scale(const AttentionShape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.head_size)); }

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
      if (key >= seen) {
      } else if (tile.diagonal && key >= query + kLanes) {
        Vector right[kScoreRows][1] = {};
        multiply_add_block<Products>(sizes.units, a, sizes.row, 1, b + kLanes, kTile, right);
#pragma GCC unroll 12
        for (int r = 0; r < kScoreRows; ++r) sums[r][1] = right[r][0];
      } else {
        multiply_add_block<Products>(sizes.units, a, sizes.row, 1, b, kTile, sums);
      }
      finish(key, query, sums);
    }
  }
}

/// Puts `value` where the key of a row is younger than the query of a lane.
[[gnu::always_inline]] inline void hide(const Tile& tile, int64_t key, int64_t query, float value,
                                        Vector (&sums)[kScoreRows][2]) {
  if (!tile.diagonal || key + kScoreRows - 1 <= query) return;
#pragma GCC unroll 12
  for (int r = 0; r < kScoreRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const auto first_visible = static_cast<int32_t>(key + r - query - v * kLanes);
      sums[r][v] = lane_numbers() < first_visible ? broadcast(value) : sums[r][v];
    }
  }
}

// --- Forward ---------------------------------------------------------------------------------------------------------

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

/// Running softmax (Milakov, Gimelshein 2018) of `keys` rows of scores, which become exp(score - maximum) as units
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

template <typename E>
E rounded(float x) {
  if constexpr (std::is_same_v<E, bfloat16>) {
    return to_bfloat16(x);
  } else {
    return x;
  }
}

/// Divides a tile of results by the sums.
template <typename E>
void finish_queries(const QueryState& state, int64_t queries, int64_t head_size, int64_t columns, float scale, E* out,
                    int64_t out_stride, float* log_sum_exp) {
  for (int64_t r = 0; r < queries; ++r) {
    const float* sums = state.out + r * columns;
    const float inverse = 1.0f / state.sums[r];
    E* out_row = out + r * out_stride;
#pragma omp simd
    for (int64_t i = 0; i < head_size; ++i) out_row[i] = rounded<E>(sums[i] * inverse);
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

// --- Backward --------------------------------------------------------------------------------------------------------

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
  prefetch_rows(arrays.q + token * shape.qkv_stride + head * D, shape.qkv_stride, queries, D);
  prefetch_rows(arrays.d_out + token * width + head * D, width, queries, D);
  prefetch_rows(arrays.out + token * width + head * D, width, queries, D);
}

/// Packs a tile of queries and what belongs to it.
template <typename Products, typename E>
void pack_queries(const AttentionShape& shape, const BackwardArrays<E>& arrays, int64_t token, int64_t queries,
                  int64_t head, const BackwardBuffers& buffers) {
  const int64_t D = shape.head_size;
  const int64_t width = shape.heads * D;
  const E* q = arrays.q + token * shape.qkv_stride + head * D;
  const float* d_out = arrays.d_out + token * width + head * D;
  const E* out = arrays.out + token * width + head * D;
  pack_transposed<Products>(q, shape.qkv_stride, queries, D, buffers.q, kTile);
  pack_summed_rows<Products>(q, shape.qkv_stride, queries, D, buffers.q_summed);
  pack_transposed<Products>(d_out, width, queries, D, buffers.d_out, kTile);
  pack_summed_rows<Products>(d_out, width, queries, D, buffers.d_out_summed);
  const float* log_sum_exp = arrays.log_sum_exp + head * shape.tokens + token;
  std::fill_n(buffers.shift, kTile, 0.0f);
  for (int64_t r = 0; r < queries; ++r) buffers.shift[r] = log_sum_exp[r] * static_cast<float>(kLog2E);
  // d_out as the products see it, so that the rows of dS still sum to zero.
  for (int64_t first = 0; first < kTile; first += kLanes) {
    Vector sums[kLanes] = {};
    for (int64_t r = 0; r < std::min<int64_t>(kLanes, queries - first); ++r) {
      const float* x = d_out + (first + r) * width;
      const E* y = out + (first + r) * width;
      for (int64_t c = 0; c < D; c += kLanes) {
        sums[r] += load_some_floats<E>(x + c, D - c) * load_some_floats<E>(y + c, D - c);
      }
    }
    transpose(sums);
    for (int r = 1; r < kLanes; ++r) sums[0] += sums[r];
    store(buffers.delta + first, sums[0]);
  }
}

/// to (rows, D) = scale from, or += .
void write_gradient(const float* from, int64_t from_stride, int64_t rows, int64_t D, float scale, bool add, float* to,
                    int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = from + r * from_stride;
    float* y = to + r * to_stride;
    if (add) {
#pragma omp simd
      for (int64_t i = 0; i < D; ++i) y[i] += scale * x[i];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < D; ++i) y[i] = scale * x[i];
    }
  }
}

/// A task is a stripe of keys of one key/value head, with all queries of the group that see it: dk and dv are complete,
/// and dq gets its summand when the stripes before have given theirs.
template <typename Products, typename E>
void backward_task(const AttentionShape& shape, int64_t document, int64_t task, const BackwardArrays<E>& arrays,
                   const BackwardBuffers& buffers, const Turns& turns, int64_t first_turn) {
  const PackedSizes<Products> sizes(shape.head_size);
  const int64_t D = shape.head_size;
  const int64_t stride = shape.qkv_stride;
  const int64_t begin = shape.offsets[document];
  const int64_t length = shape.offsets[document + 1] - begin;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t kv_head = task % shape.kv_heads;
  const int64_t stripe = task / shape.kv_heads;
  const int64_t first = stripe * stripe_tiles(length, D);
  const int64_t last = std::min(tiles_of(length), first + stripe_tiles(length, D));
  const auto rows_of = [&](int64_t tile) { return std::min(kTile, length - tile * kTile); };
  const auto offset_of = [&](int64_t tile, int64_t head) { return (begin + tile * kTile) * stride + head * D; };
  const auto scale = static_cast<float>(kLog2E / std::sqrt(static_cast<double>(D)));

  for (int64_t j = first; j < last; ++j) {
    const int64_t row = offset_of(j, kv_head);
    pack_rows<Products>(arrays.k + row, stride, rows_of(j), D, buffers.k_rows + (j - first) * sizes.rows(), sizes.row);
    pack_rows<Products>(arrays.v + row, stride, rows_of(j), D, buffers.v_rows + (j - first) * sizes.rows(), sizes.row);
    if constexpr (Products::kPack == 2) {
      pack_summed_rows<Products>(arrays.k + row, stride, rows_of(j), D,
                                 buffers.k_summed + (j - first) * sizes.summed_rows());
    }
  }
  std::fill_n(buffers.dk, (last - first) * sizes.sums(), 0.0f);
  std::fill_n(buffers.dv, (last - first) * sizes.sums(), 0.0f);

  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t i = first; i < tiles_of(length); ++i) {
      pack_queries<Products>(shape, arrays, begin + i * kTile, rows_of(i), head, buffers);
      prefetch_rows<Fetch::to_write>(arrays.dq + offset_of(i, head), stride, rows_of(i), D);
      if (i + 1 < tiles_of(length)) prefetch_queries(shape, arrays, begin + (i + 1) * kTile, rows_of(i + 1), head);
      for (int64_t j = first; j < std::min(last, i + 1); ++j) {
        const Tile tile{rows_of(j), rows_of(i), i == j};
        const int64_t t = j - first;
        score_gradient<Products>(tile, sizes, scale, buffers.k_rows + t * sizes.rows(),
                                 buffers.v_rows + t * sizes.rows(), buffers);
        add_gradients<Products>(tile, sizes, buffers.k_summed + t * sizes.summed_rows(), j == first, buffers,
                                buffers.dk + t * sizes.sums(), buffers.dv + t * sizes.sums());
      }
      const int64_t turn = (first_turn + i) * shape.heads + head;
      turns.wait(turn, static_cast<int32_t>(stripe));
      write_gradient(buffers.dq, sizes.columns, rows_of(i), D, score_scale(shape), stripe > 0,
                     arrays.dq + offset_of(i, head), stride);
      turns.pass_on(turn);
    }
  }
  for (int64_t j = first; j < last; ++j) {
    const int64_t t = (j - first) * sizes.sums();
    prefetch_rows<Fetch::to_write>(arrays.dk + offset_of(j, kv_head), stride, rows_of(j), D);
    prefetch_rows<Fetch::to_write>(arrays.dv + offset_of(j, kv_head), stride, rows_of(j), D);
    write_gradient(buffers.dk + t, sizes.columns, rows_of(j), D, score_scale(shape), false,
                   arrays.dk + offset_of(j, kv_head), stride);
    write_gradient(buffers.dv + t, sizes.columns, rows_of(j), D, 1.0f, false, arrays.dv + offset_of(j, kv_head),
                   stride);
  }
}

// --- The workspace ---------------------------------------------------------------------------------------------------

template <typename Products>
int64_t thread_floats(int64_t head_size) {
  const PackedSizes<Products> sizes(head_size);
  Carver forward(nullptr);
  Carver backward(nullptr);
  ForwardBuffers(forward, sizes);
  BackwardBuffers(backward, sizes, widest_stripe(head_size));
  return std::max(forward.used(), backward.used());
}

int64_t thread_floats(int64_t head_size) {
  return std::max(thread_floats<Fp32Products>(head_size), thread_floats<Bf16Products>(head_size));
}

/// The workspace: what the threads share, then each one's own.
class Workspace {
 public:
  Workspace(const AttentionShape& shape, float* workspace)
      : carver_(workspace),
        tasks(carver_, shape),
        first_turn(carver_.take_as<int64_t>(shape.documents + 1)),
        turns(carver_.take_as<int32_t>((shape.tokens / kTile + shape.documents) * shape.heads)),
        thread_floats_(thread_floats(shape.head_size)),
        threads_(carver_.take(0)) {}

 private:
  Carver carver_;

 public:
  TaskList tasks;
  int64_t* first_turn;  // (documents + 1) tiles of queries before each document
  int32_t* turns;       // (tiles of queries, H)

  int64_t floats(int threads) const { return carver_.used() + threads * thread_floats_; }
  /// The calling thread's.
  Carver own() const { return Carver(threads_ + omp_get_thread_num() * thread_floats_); }

 private:
  int64_t thread_floats_;
  float* threads_;
};

constexpr int64_t kCacheLineBytes = 64;

float* aligned(float* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return reinterpret_cast<float*>(round_up(static_cast<int64_t>(address), kCacheLineBytes));
}

template <typename Products, typename E>
void forward(const Stream& stream, const AttentionShape& shape, const ForwardArrays<E>& arrays, float* workspace) {
  Workspace work(shape, aligned(workspace));
  const int64_t group = shape.heads / shape.kv_heads;
  work.tasks.number(
      [&](int64_t length) { return (tiles_of(length) * group + kQueryTiles - 1) / kQueryTiles * shape.kv_heads; });
  work.tasks.run(stream.threads(), [&](int64_t document, int64_t task) {
    Carver own = work.own();
    forward_task<Products>(shape, document, task, arrays, ForwardBuffers(own, PackedSizes<Products>(shape.head_size)));
  });
}

template <typename Products, typename E>
void backward(const Stream& stream, const AttentionShape& shape, const BackwardArrays<E>& arrays, float* workspace) {
  Workspace work(shape, aligned(workspace));
  work.first_turn[0] = 0;
  for (int64_t i = 0; i < shape.documents; ++i) {
    work.first_turn[i + 1] = work.first_turn[i] + tiles_of(work.tasks.length(i));
  }
  const Turns turns(work.turns, work.first_turn[shape.documents] * shape.heads);
  work.tasks.number([&](int64_t length) {
    const int64_t stripe = stripe_tiles(length, shape.head_size);
    return (tiles_of(length) + stripe - 1) / stripe * shape.kv_heads;
  });
  work.tasks.run(stream.threads(), [&](int64_t document, int64_t task) {
    Carver own = work.own();
    backward_task<Products>(
        shape, document, task, arrays,
        BackwardBuffers(own, PackedSizes<Products>(shape.head_size), widest_stripe(shape.head_size)), turns,
        work.first_turn[document]);
  });
}

}  // namespace

int64_t attention_workspace(const Stream& stream, const AttentionShape& shape) {
  return Workspace(shape, nullptr).floats(stream.threads()) + kCacheLineBytes / static_cast<int64_t>(sizeof(float));
}

void attention_forward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                       Values out, float* log_sum_exp, float* workspace) {
  if (q.element() == Element::bf16) {
    forward<Bf16Products, bfloat16>(stream, shape, {q.bf16(), k.bf16(), v.bf16(), out.bf16(), log_sum_exp}, workspace);
  } else {
    forward<Fp32Products, float>(stream, shape, {q.fp32(), k.fp32(), v.fp32(), out.fp32(), log_sum_exp}, workspace);
  }
}

void attention_backward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                        ConstValues out, const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv,
                        float* workspace) {
  if (q.element() == Element::bf16) {
    backward<Bf16Products, bfloat16>(
        stream, shape, {q.bf16(), k.bf16(), v.bf16(), out.bf16(), log_sum_exp, d_out, dq, dk, dv}, workspace);
  } else {
    backward<Fp32Products, float>(
        stream, shape, {q.fp32(), k.fp32(), v.fp32(), out.fp32(), log_sum_exp, d_out, dq, dk, dv}, workspace);
  }
}

}  // namespace hat::cpu
