#include "attention_tiles.cuh"
#include "attention_work.cuh"

// Attention's forward pass on tensor cores (Dao 2023, FlashAttention-2): a block has a tile of queries of one head,
// each warp some of its rows, and meets the keys and values tile by tile; the next tile is on its way meanwhile.
namespace hat::cuda::attention {

namespace {

using Bf16 = __nv_bfloat16;

/// Rows of a warp: two tiles of 16 halve what is read from shared memory, as far as their sums fit the registers.
template <int kColumns>
struct Sizes {
  static constexpr int kRowTiles = kColumns <= 128 ? 2 : 1;
  static constexpr int kWarps = 8 / kRowTiles;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kQueries = kWarps * kWarpRows;
  static constexpr int kKeys = kColumns <= 192 ? 64 : 32;  // of a stage
  // Keys that a warp meets at once: their scores share the registers with the sums.
  static constexpr int kStep = kColumns == 96 || kColumns == 128 ? 32 : kKeys;
  static constexpr int kColumnSteps = kColumns == 128 && kFewRegisters ? 4 : kColumns / 16;  // at once (multiply_rows)
  static constexpr int kQueryTile = kQueries * kColumns;
  static constexpr int kKeyTile = kKeys * kColumns;
  static constexpr size_t kSharedBytes = (kQueryTile + 4 * kKeyTile) * sizeof(Bf16);  // two stages of keys and values
};

/// The running softmax (Milakov, Gimelshein 2018) of the rows of a lane: rows g and g + 8 of each tile.
template <int kRowTiles>
struct RunningSoftmax {
  float maxima[kRowTiles][2];  // of the scores, before their scaling
  float sums[kRowTiles][2];    // of this lane's columns of a row; the four lanes' together are the row's
};

/// Hides the keys that a row does not see: of its own future, or beyond the last.
template <int kRowTiles, int kTiles>
__device__ __forceinline__ void hide(int first_row, int first_key, int keys, bool causal,
                                     Sums<kRowTiles, kTiles>& scores) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * r + 8 * half + lane / 4;
      const int seen = (causal ? row + 1 : keys) - first_key - 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (8 * n >= seen) scores[r][n][2 * half] = kHidden;
        if (8 * n + 1 >= seen) scores[r][n][2 * half + 1] = kHidden;
      }
    }
  }
}

/// Scores become exp(score - maximum), and earlier sums are brought to the new maxima. In powers of two.
template <int kRowTiles, int kTiles, int kColumnTiles>
__device__ __forceinline__ void absorb(float scale, Sums<kRowTiles, kTiles>& scores, RunningSoftmax<kRowTiles>& softmax,
                                       Sums<kRowTiles, kColumnTiles>& out) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = softmax.maxima[r][half];
      float maximum = before;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        maximum = fmaxf(maximum, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
      const float shift = maximum * scale;
      // From the shifts as they were used: exactly 1 for a maximum that stays.
      const float correction = exp2_approx(before * scale - shift);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[r][n][2 * half + i];
          score = exp2_approx(fmaf(score, scale, -shift));
          sum += score;
        }
      }
      softmax.maxima[r][half] = maximum;
      softmax.sums[r][half] = softmax.sums[r][half] * correction + sum;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        out[r][n][2 * half] *= correction;
        out[r][n][2 * half + 1] *= correction;
      }
    }
  }
}

/// What a warp begins with: nothing, or the state after the segments before.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void begin_rows(const ForwardArguments<Bf16>& a, int head, int first_row, int rows,
                                           RunningSoftmax<kRowTiles>& softmax, Sums<kRowTiles, kColumnTiles>& out) {
  clear(out);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64_t width = static_cast<int64_t>(a.heads.heads) * a.heads.head_size;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      softmax.maxima[r][half] = kHidden;
      softmax.sums[r][half] = 0;
      const int row = 16 * r + 8 * half + lane / 4;
      if (a.first || row >= rows) continue;
      const int64_t in_head = head * a.heads.tokens + first_row + row;
      softmax.maxima[r][half] = a.state.maxima[in_head];
      if (lane % 4 == 0) softmax.sums[r][half] = a.state.divisors[in_head];
      const float* sums =
          a.state.sums + static_cast<int64_t>(first_row + row) * width + static_cast<int64_t>(head) * a.heads.head_size;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const int column = 8 * n + 2 * (lane % 4);
        if (column >= a.heads.head_size) continue;
        const float2 pair = *reinterpret_cast<const float2*>(sums + column);
        out[r][n][2 * half] = pair.x;
        out[r][n][2 * half + 1] = pair.y;
      }
    }
  }
}

template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void end_rows(const ForwardArguments<Bf16>& a, int head, int first_row, int rows,
                                         const RunningSoftmax<kRowTiles>& softmax,
                                         const Sums<kRowTiles, kColumnTiles>& out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64_t width = static_cast<int64_t>(a.heads.heads) * a.heads.head_size;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float divisor = softmax.sums[r][half];
      divisor += __shfl_xor_sync(kAllLanes, divisor, 1);
      divisor += __shfl_xor_sync(kAllLanes, divisor, 2);
      const int row = 16 * r + 8 * half + lane / 4;
      if (row >= rows) continue;
      const int64_t in_head = head * a.heads.tokens + first_row + row;
      const int64_t at = static_cast<int64_t>(first_row + row) * width + static_cast<int64_t>(head) * a.heads.head_size;
      const bool finishes = a.state.sums == nullptr;
      if (lane % 4 == 0) {
        if (finishes) {
          a.log_sum_exp[in_head] = log_sum_of(softmax.maxima[r][half], divisor, a.heads.scale);
        } else {
          a.state.maxima[in_head] = softmax.maxima[r][half];
          a.state.divisors[in_head] = divisor;
        }
      }
      const float inverse = 1.0F / divisor;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const int column = 8 * n + 2 * (lane % 4);
        if (column >= a.heads.head_size) continue;
        const float x = out[r][n][2 * half];
        const float y = out[r][n][2 * half + 1];
        if (finishes) {
          *reinterpret_cast<__nv_bfloat162*>(a.out + at + column) = __floats2bfloat162_rn(x * inverse, y * inverse);
        } else {
          *reinterpret_cast<float2*>(a.state.sums + at + column) = make_float2(x, y);
        }
      }
    }
  }
}

template <int kColumns>
__global__ __launch_bounds__(Sizes<kColumns>::kThreads) void forward_kernel(ForwardArguments<Bf16> a) {
  using S = Sizes<kColumns>;
  DocumentTile tile;
  int head = 0;
  if (!task_of_block(a.queries, a.heads.heads, tile, head)) return;
  auto* q_tile = dynamic_shared<Bf16>();
  Bf16* const stages = q_tile + S::kQueryTile;

  const int first_query = tile.tile * S::kQueries;
  const int queries = min(S::kQueries, tile.length - first_query);
  const int all_keys = a.keys.length_for(tile);
  const int keys = a.keys.causal ? min(all_keys, first_query + S::kQueries) : all_keys;  // that some query sees
  const int kv_head = head / a.heads.group();
  int64_t kv_at = a.keys.begin_for(tile) * a.inputs.kv_stride + static_cast<int64_t>(kv_head) * a.inputs.columns;
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
  begin_tile<S::kQueries, kColumns, S::kThreads>(q_tile,
                                                 a.inputs.q + static_cast<int64_t>(row_of_batch) * a.inputs.q_stride +
                                                     static_cast<int64_t>(head) * a.inputs.columns,
                                                 a.inputs.q_stride, queries, a.inputs.columns);
  begin_keys(0, 0);

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * S::kWarpRows;
  const int own_row = first_query + warp_row;  // the warp's first, in its document
  const int own_rows = queries - warp_row;     // may be none
  RunningSoftmax<S::kRowTiles> softmax;
  Sums<S::kRowTiles, kColumns / 8> out;
  begin_rows(a, head, row_of_batch + warp_row, own_rows, softmax, out);

  const float scale = a.heads.scale_log2();
  const int seen = own_rows <= 0 ? 0 : a.keys.causal ? min(keys, own_row + S::kWarpRows) : keys;  // by this warp
  int stage = 0;
  for (int key = 0; key < keys; key += S::kKeys, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // these keys are there, and the stage before is no longer read
    if (key + S::kKeys < keys) begin_keys(stage ^ 1, key + S::kKeys);
    const Bf16* const k_tile = stages + 2 * stage * S::kKeyTile;
#pragma unroll 1
    for (int row = 0; row < S::kKeys; row += S::kStep) {
      if (key + row >= seen) break;
      Sums<S::kRowTiles, S::kStep / 8> scores;
      multiply_rows<kColumns, S::kColumnSteps>(q_tile, warp_row, k_tile, row, scores);
      const bool hides = key + row + S::kStep > (a.keys.causal ? own_row + 1 : keys);
      if (hides) hide(own_row, key + row, keys, a.keys.causal, scores);
      absorb(scale, scores, softmax, out);
      add_weighted_rows<kColumns>(scores, k_tile + S::kKeyTile, row, out);
    }
  }
  wait_copies<0>();  // of the queries, if there were no keys
  end_rows(a, head, row_of_batch + warp_row, own_rows, softmax, out);
}

}  // namespace

int forward_tile_rows_bf16(int64_t head_size) {
  return with_columns(head_size, [](auto columns) { return Sizes<columns()>::kQueries; });
}

void start_forward(const Stream& stream, int64_t blocks, const ForwardArguments<Bf16>& arguments) {
  with_columns(arguments.heads.head_size, [&](auto columns) {
    using S = Sizes<columns()>;
    launch(stream, forward_kernel<columns()>, blocks_for(blocks, 1), S::kThreads, S::kSharedBytes, arguments);
  });
}

}  // namespace hat::cuda::attention
