#include "attention_tiles.cuh"
#include "attention_work.cuh"

// Attention's backward pass on tensor cores. The scores are computed again, twice: by blocks of queries, which add up
// dq, and by blocks of keys, which add up dk and dv. So no two blocks write the same sums, and nobody waits for turns;
// that costs 7 products instead of 5, but none of the traffic of adding dq in memory tile after tile.
namespace hat::cuda::attention {

namespace {

using Bf16 = __nv_bfloat16;

/// Of 16 columns each, that multiply_rows unrolls.
template <int kColumns>
inline constexpr int kColumnSteps = kColumns == 128 ? 4 : kColumns / 16;

/// P = exp2(scale score - shift) and dS = P (dP - delta) of one score.
__device__ __forceinline__ float probability(float score, float scale, float shift) {
  return exp2_approx(fmaf(score, scale, -shift));
}

// --- dq --------------------------------------------------------------------------------------------------------------

template <int kColumns>
struct QuerySizes {
  static constexpr int kRowTiles = kColumns <= 128 ? 2 : 1;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kQueries = kWarps * kWarpRows;
  static constexpr int kKeys = kColumns <= 64 ? 64 : 32;
  // Keys whose scores and their gradients share the registers with dq.
  static constexpr int kStep = kColumns == 128 && kFewRegisters ? 16 : 32;
  static constexpr int kQueryTile = kQueries * kColumns;
  static constexpr int kKeyTile = kKeys * kColumns;
  static constexpr size_t kSharedBytes = (2 * kQueryTile + 4 * kKeyTile) * sizeof(Bf16) + kQueries * sizeof(float2);
};

template <int kColumns>
__global__ __launch_bounds__(QuerySizes<kColumns>::kThreads) void queries_kernel(BackwardArguments<Bf16> a) {
  using S = QuerySizes<kColumns>;
  DocumentTile tile;
  int head = 0;
  if (!task_of_block(a.queries, a.heads.heads, tile, head)) return;
  auto* q_tile = dynamic_shared<Bf16>();
  Bf16* const d_out_tile = q_tile + S::kQueryTile;
  Bf16* const stages = d_out_tile + S::kQueryTile;
  auto* rows = reinterpret_cast<float2*>(stages + 4 * S::kKeyTile);  // QueryRow

  const int first_query = tile.tile * S::kQueries;
  const int queries = min(S::kQueries, tile.length - first_query);
  const int all_keys = a.keys_of_queries.length_for(tile);
  const bool causal = a.keys_of_queries.causal;
  const int keys = causal ? min(all_keys, first_query + S::kQueries) : all_keys;  // that some query sees
  int64_t kv_at = a.keys_of_queries.begin_for(tile) * a.inputs.kv_stride +
                  static_cast<int64_t>(head / a.heads.group()) * a.inputs.columns;
  const int row_of_batch = tile.begin + first_query;
  const auto begin_keys = [&](int stage, int key) {
    Bf16* const to = stages + 2 * stage * S::kKeyTile;
    begin_tile<S::kKeys, kColumns, S::kThreads>(to, a.inputs.k + kv_at, a.inputs.kv_stride, keys - key,
                                                a.inputs.columns);
    begin_tile<S::kKeys, kColumns, S::kThreads>(to + S::kKeyTile, a.inputs.v + kv_at, a.inputs.kv_stride, keys - key,
                                                a.inputs.columns);
    commit_copies();
    kv_at += S::kKeys * a.inputs.kv_stride;
  };
  const int64_t d_out_stride = static_cast<int64_t>(a.heads.heads) * a.inputs.columns;
  const int64_t at = static_cast<int64_t>(head) * a.inputs.columns;
  begin_tile<S::kQueries, kColumns, S::kThreads>(q_tile, a.inputs.q + row_of_batch * a.inputs.q_stride + at,
                                                 a.inputs.q_stride, queries, a.inputs.columns);
  begin_tile<S::kQueries, kColumns, S::kThreads>(d_out_tile, a.d_out + row_of_batch * d_out_stride + at, d_out_stride,
                                                 queries, a.inputs.columns);
  static_assert(S::kQueries <= S::kThreads);
  const int own = static_cast<int>(threadIdx.x);
  if (own < S::kQueries) {
    copy_async_8(rows + own, a.rows + head * a.heads.tokens + row_of_batch + own, own < queries);
  }
  begin_keys(0, 0);

  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * S::kWarpRows;
  const int own_row = first_query + warp_row;
  const int own_rows = queries - warp_row;  // may be none
  Sums<S::kRowTiles, kColumns / 8> dq;
  clear(dq);

  const float scale = a.heads.scale_log2();
  const int seen = own_rows <= 0 ? 0 : causal ? min(keys, own_row + S::kWarpRows) : keys;  // by this warp
  int stage = 0;
  for (int key = 0; key < keys; key += S::kKeys, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // these keys are there, and the stage before is no longer read
    if (key + S::kKeys < keys) begin_keys(stage ^ 1, key + S::kKeys);
    const Bf16* const k_tile = stages + 2 * stage * S::kKeyTile;
#pragma unroll 1
    for (int step = 0; step < S::kKeys; step += S::kStep) {
      const int first_key = key + step;
      if (first_key >= seen) break;
      Sums<S::kRowTiles, S::kStep / 8> scores;
      Sums<S::kRowTiles, S::kStep / 8> gradients;
      multiply_rows<kColumns, kColumnSteps<kColumns>>(q_tile, warp_row, k_tile, step, scores);
      multiply_rows<kColumns, kColumnSteps<kColumns>>(d_out_tile, warp_row, k_tile + S::kKeyTile, step, gradients);
      const bool hides = first_key + S::kStep > (causal ? own_row + 1 : keys);
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * r + 8 * half + lane / 4;
          const auto [shift, delta] = rows[warp_row + row];
          const int visible = (causal ? own_row + row + 1 : keys) - first_key - 2 * (lane % 4);
#pragma unroll
          for (int n = 0; n < S::kStep / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int at_pair = 2 * half + i;
              float p = probability(scores[r][n][at_pair], scale, shift);
              // A key that is not there has a score of 0, and any exponential.
              if (hides && 8 * n + i >= visible) p = 0;
              scores[r][n][at_pair] = p * (gradients[r][n][at_pair] - delta);
            }
          }
        }
      }
      add_weighted_rows<kColumns>(scores, k_tile, step, dq);
    }
  }
  wait_copies<0>();  // of the queries, if there were no keys
  write_gradient(dq, a.heads.scale, !a.first, own_rows, a.heads.head_size,
                 a.dq + (row_of_batch + warp_row) * a.q_stride + static_cast<int64_t>(head) * a.heads.head_size,
                 a.q_stride);
}

// --- dk and dv -------------------------------------------------------------------------------------------------------

/// Which of the two sums a kernel makes: both fit the registers up to 128 columns.
enum class Part { both, values, keys };

template <int kColumns>
struct KeySizes {
  static constexpr bool kNarrow = kColumns <= 64;
  static constexpr bool kWide = kColumns > 128;
  static constexpr int kRowTiles = kNarrow ? 2 : 1;
  static constexpr int kWarps = kNarrow || kWide ? 4 : 8;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kKeys = kWarps * kWarpRows;
  static constexpr int kQueries = kNarrow || kWide ? 32 : 64;                // of a stage
  static constexpr int kStep = kColumns == 96 || kColumns == 128 ? 64 : 32;  // queries that a warp meets at once
  static constexpr int kKeyTile = kKeys * kColumns;
  static constexpr int kQueryTile = kQueries * kColumns;
  static constexpr size_t kStageBytes = 2 * kQueryTile * sizeof(Bf16) + kQueries * sizeof(float2);
  static constexpr size_t kSharedBytes = 2 * kKeyTile * sizeof(Bf16) + 2 * kStageBytes;
};

/// A stage of queries in shared memory.
template <int kColumns>
struct QueryStage {
  using S = KeySizes<kColumns>;
  Bf16* q;
  Bf16* d_out;
  float2* rows;  // QueryRow
  __device__ static QueryStage number(int stage, Bf16* stages) {
    Bf16* const q = stages + stage * (S::kStageBytes / sizeof(Bf16));
    return {q, q + S::kQueryTile, reinterpret_cast<float2*>(q + 2 * S::kQueryTile)};
  }
};

template <int kColumns, Part kPart>
__global__ __launch_bounds__(KeySizes<kColumns>::kThreads) void keys_kernel(BackwardArguments<Bf16> a) {
  using S = KeySizes<kColumns>;
  constexpr bool kOfValues = kPart != Part::keys;
  constexpr bool kOfKeys = kPart != Part::values;
  DocumentTile tile;
  int kv_head = 0;
  if (!task_of_block(a.key_tiles, a.heads.kv_heads, tile, kv_head)) return;
  auto* k_tile = dynamic_shared<Bf16>();
  Bf16* const v_tile = k_tile + S::kKeyTile;
  Bf16* const stages = v_tile + S::kKeyTile;

  const int first_key = tile.tile * S::kKeys;
  const int keys = min(S::kKeys, tile.length - first_key);
  const int queries = a.queries_of_keys.length_for(tile);
  const int query_begin = a.queries_of_keys.begin_for(tile);
  const bool causal = a.queries_of_keys.causal;
  // Queries before the first key see none of them.
  const int first_tile = causal ? first_key / S::kQueries : 0;
  const int end_tile = (queries + S::kQueries - 1) / S::kQueries;

  // They are met head by head of the group. Quotients, because registers are scarcer than instructions here.
  const int tiles_of_head = end_tile - first_tile;
  const int tiles = tiles_of_head * a.heads.group();
  const auto begin_queries = [&](int number) {
    const auto to = QueryStage<kColumns>::number(number % 2, stages);
    const int head = kv_head * a.heads.group() + number / tiles_of_head;
    const int query = (first_tile + number % tiles_of_head) * S::kQueries;
    const int64_t row = query_begin + query;
    const int rows = queries - query;
    const int64_t d_out_stride = static_cast<int64_t>(a.heads.heads) * a.inputs.columns;
    const int64_t at = static_cast<int64_t>(head) * a.inputs.columns;
    begin_tile<S::kQueries, kColumns, S::kThreads>(to.q, a.inputs.q + row * a.inputs.q_stride + at, a.inputs.q_stride,
                                                   rows, a.inputs.columns);
    begin_tile<S::kQueries, kColumns, S::kThreads>(to.d_out, a.d_out + row * d_out_stride + at, d_out_stride, rows,
                                                   a.inputs.columns);
    static_assert(S::kQueries <= S::kThreads);
    const int own = static_cast<int>(threadIdx.x);
    if (own < S::kQueries) copy_async_8(to.rows + own, a.rows + head * a.heads.tokens + row + own, own < rows);
    commit_copies();
  };
  const int64_t kv_at = static_cast<int64_t>(tile.begin + first_key) * a.inputs.kv_stride +
                        static_cast<int64_t>(kv_head) * a.inputs.columns;
  begin_tile<S::kKeys, kColumns, S::kThreads>(k_tile, a.inputs.k + kv_at, a.inputs.kv_stride, keys, a.inputs.columns);
  if constexpr (kOfKeys) {
    begin_tile<S::kKeys, kColumns, S::kThreads>(v_tile, a.inputs.v + kv_at, a.inputs.kv_stride, keys, a.inputs.columns);
  }
  if (tiles > 0) begin_queries(0);

  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * S::kWarpRows;
  const int own_key = first_key + warp_row;
  const int own_keys = keys - warp_row;  // may be none
  Sums<S::kRowTiles, kOfKeys ? kColumns / 8 : 1> dk;
  Sums<S::kRowTiles, kOfValues ? kColumns / 8 : 1> dv;
  clear(dk);
  clear(dv);

  const float scale = a.heads.scale_log2();
  for (int number = 0; number < tiles; ++number) {
    wait_copies<0>();
    __syncthreads();  // these queries are there, and the stage before is no longer read
    if (number + 1 < tiles) begin_queries(number + 1);
    const auto of = QueryStage<kColumns>::number(number % 2, stages);
    const int first_query = (first_tile + number % tiles_of_head) * S::kQueries;
#pragma unroll 1
    for (int step = 0; step < S::kQueries; step += S::kStep) {
      const int query = first_query + step;
      // Queries that are not there, or see none of the warp's keys.
      if (query >= queries || own_keys <= 0) break;
      if (causal && query + S::kStep <= own_key) continue;
      Sums<S::kRowTiles, S::kStep / 8> scores;
      Sums<S::kRowTiles, kOfKeys ? S::kStep / 8 : 1> gradients;
      multiply_rows<kColumns, kColumnSteps<kColumns>>(k_tile, warp_row, of.q, step, scores);
      if constexpr (kOfKeys)
        multiply_rows<kColumns, kColumnSteps<kColumns>>(v_tile, warp_row, of.d_out, step, gradients);
      const bool hides = causal && query < own_key + S::kWarpRows - 1;
#pragma unroll
      for (int n = 0; n < S::kStep / 8; ++n) {
        // Of two neighbouring queries. Those that are not there have zeros everywhere, and add nothing.
        const float4 rows = *reinterpret_cast<const float4*>(of.rows + step + 8 * n + 2 * (lane % 4));
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float shift = i % 2 == 0 ? rows.x : rows.z;
            const float delta = i % 2 == 0 ? rows.y : rows.w;
            float p = probability(scores[r][n][i], scale, shift);
            const int key = own_key + 16 * r + 8 * (i / 2) + lane / 4;
            if (hides && key > query + 8 * n + 2 * (lane % 4) + i % 2) p = 0;
            scores[r][n][i] = p;
            if constexpr (kOfKeys) gradients[r][n][i] = p * (gradients[r][n][i] - delta);
          }
        }
      }
      if constexpr (kOfValues) add_weighted_rows<kColumns>(scores, of.d_out, step, dv);
      if constexpr (kOfKeys) add_weighted_rows<kColumns>(gradients, of.q, step, dk);
    }
  }
  wait_copies<0>();  // of the keys, if there were no queries
  const int64_t to =
      static_cast<int64_t>(tile.begin + own_key) * a.kv_stride + static_cast<int64_t>(kv_head) * a.heads.head_size;
  if constexpr (kOfKeys) {
    write_gradient(dk, a.heads.scale, false, own_keys, a.heads.head_size, a.dk + to, a.kv_stride);
  }
  if constexpr (kOfValues) write_gradient(dv, 1.0F, false, own_keys, a.heads.head_size, a.dv + to, a.kv_stride);
}

template <int kColumns, Part kPart>
void start_keys(const Stream& stream, int64_t blocks, const BackwardArguments<Bf16>& arguments) {
  using S = KeySizes<kColumns>;
  launch(stream, keys_kernel<kColumns, kPart>, blocks_for(blocks, 1), S::kThreads, S::kSharedBytes, arguments);
}

}  // namespace

int query_tile_rows_bf16(int64_t head_size) {
  return with_columns(head_size, [](auto columns) { return QuerySizes<columns()>::kQueries; });
}
int key_tile_rows_bf16(int64_t head_size) {
  return with_columns(head_size, [](auto columns) { return KeySizes<columns()>::kKeys; });
}

void start_backward_queries(const Stream& stream, int64_t blocks, const BackwardArguments<Bf16>& arguments) {
  with_columns(arguments.heads.head_size, [&](auto columns) {
    using S = QuerySizes<columns()>;
    launch(stream, queries_kernel<columns()>, blocks_for(blocks, 1), S::kThreads, S::kSharedBytes, arguments);
  });
}

void start_backward_keys(const Stream& stream, int64_t blocks, const BackwardArguments<Bf16>& arguments) {
  with_columns(arguments.heads.head_size, [&](auto columns) {
    if constexpr (KeySizes<columns()>::kWide) {
      start_keys<columns(), Part::values>(stream, blocks, arguments);
      start_keys<columns(), Part::keys>(stream, blocks, arguments);
    } else {
      start_keys<columns(), Part::both>(stream, blocks, arguments);
    }
  });
}

}  // namespace hat::cuda::attention
