#include "attention_work.cuh"

// Attention in fp32, without tensor cores: tiles of kRows queries and as many keys in shared memory, a square of scores
// for each thread. The same blocks as in bf16: of queries forward and for dq, of keys for dk and dv.
namespace hat::cuda::attention {

namespace {

constexpr int kSide = 16;  // threads that share a row, or a column, of scores
constexpr int kThreads = kSide * kSide;

/// This thread's rows are row() + kSide i, its columns of scores column() + kSide j.
__device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kSide; }
__device__ __forceinline__ int column() { return static_cast<int>(threadIdx.x) % kSide; }

/// Rows of kColumns floats, four more apart, so that the same columns of neighbouring rows lie in different banks.
template <int kColumns>
constexpr int kStride = kColumns + 4;

template <int kRows, int kColumns>
__device__ __forceinline__ void load_tile(float* tile, const float* from, int64_t stride, int rows, int columns) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += kThreads) {
    const int r = i / kColumns;
    const int c = i % kColumns;
    tile[r * kStride<kColumns> + c] = r < rows && c < columns ? from[r * stride + c] : 0;
  }
}

template <int kPer>
using Scores = float[kPer][kPer];

/// scores = a b^T of two tiles.
template <int kPer, int kColumns>
__device__ __forceinline__ void multiply_rows(const float* a, const float* b, Scores<kPer>& scores) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) scores[i][j] = 0;
  }
#pragma unroll 4
  for (int c = 0; c < kColumns; c += 4) {
    float4 x[kPer];
    float4 y[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      x[i] = *reinterpret_cast<const float4*>(a + (row() + kSide * i) * kStride<kColumns> + c);
      y[i] = *reinterpret_cast<const float4*>(b + (column() + kSide * i) * kStride<kColumns> + c);
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        scores[i][j] += x[i].x * y[j].x;
        scores[i][j] += x[i].y * y[j].y;
        scores[i][j] += x[i].z * y[j].z;
        scores[i][j] += x[i].w * y[j].w;
      }
    }
  }
}

/// Columns of a tile that a thread adds up: vectors of kVector, kSide of them side by side.
template <int kColumns>
struct Columns {
  static constexpr int kPerThread = kColumns / kSide;
  static constexpr int kVector = kPerThread < 4 ? kPerThread : 4;
  static constexpr int kVectors = kPerThread / kVector;
  using Vector = std::conditional_t<kVector == 4, float4, float2>;
  __device__ static int first(int vector) { return (vector * kSide + column()) * kVector; }
};
template <int kPer, int kColumns>
using Sums = float[kPer][Columns<kColumns>::kPerThread];

template <int kPer, int kPerThread>
__device__ __forceinline__ void clear(float (&sums)[kPer][kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int c = 0; c < kPerThread; ++c) sums[i][c] = 0;
  }
}

/// A tile of scores in shared memory: (kRows, kRows).
template <int kPer>
__device__ __forceinline__ void store_scores(const Scores<kPer>& scores, float* tile) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      tile[(row() + kSide * i) * kStride<kSide * kPer> + column() + kSide * j] = scores[i][j];
  }
}

__device__ __forceinline__ void multiply_add(float (&sums)[4], float weight, float4 x) {
  sums[0] += weight * x.x;
  sums[1] += weight * x.y;
  sums[2] += weight * x.z;
  sums[3] += weight * x.w;
}
__device__ __forceinline__ void multiply_add(float (&sums)[2], float weight, float2 x) {
  sums[0] += weight * x.x;
  sums[1] += weight * x.y;
}

/// sums += weights b, with the weights (kRows, kRows) and b (kRows, kColumns) in shared memory.
template <int kPer, int kColumns>
__device__ __forceinline__ void add_weighted_rows(const float* weights, const float* b, Sums<kPer, kColumns>& sums) {
  using C = Columns<kColumns>;
  using Group = float[C::kVector];
#pragma unroll 2
  for (int k = 0; k < kSide * kPer; k += 4) {
    float4 w[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      w[i] = *reinterpret_cast<const float4*>(weights + (row() + kSide * i) * kStride<kSide * kPer> + k);
    }
#pragma unroll
    for (int v = 0; v < C::kVectors; ++v) {
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        const auto x = *reinterpret_cast<const typename C::Vector*>(b + (k + l) * kStride<kColumns> + C::first(v));
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const float weight = l == 0 ? w[i].x : l == 1 ? w[i].y : l == 2 ? w[i].z : w[i].w;
          multiply_add(reinterpret_cast<Group&>(sums[i][v * C::kVector]), weight, x);
        }
      }
    }
  }
}

/// Calls visit(i, column of the head, index of the thread's sums) for the columns that exist.
template <int kColumns, class Visit>
__device__ __forceinline__ void for_each_column(int columns, Visit&& visit) {
  using C = Columns<kColumns>;
#pragma unroll
  for (int v = 0; v < C::kVectors; ++v) {
#pragma unroll
    for (int e = 0; e < C::kVector; ++e) {
      if (C::first(v) + e < columns) visit(C::first(v) + e, v * C::kVector + e);
    }
  }
}

/// to (rows, columns) = scale sums, or +=.
template <int kPer, int kColumns>
__device__ __forceinline__ void write_gradient(const Sums<kPer, kColumns>& sums, float scale, bool add, int rows,
                                               int columns, float* to, int64_t stride) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int r = row() + kSide * i;
    if (r >= rows) continue;
    for_each_column<kColumns>(columns, [&](int c, int at) {
      float& y = to[r * stride + c];
      y = (add ? y : 0) + scale * sums[i][at];
    });
  }
}

template <bool kMaximum>
__device__ __forceinline__ float over_row(float value) {
#pragma unroll
  for (int bits = kSide / 2; bits > 0; bits /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, bits);
    value = kMaximum ? fmaxf(value, other) : value + other;
  }
  return value;
}

// --- Forward ---------------------------------------------------------------------------------------------------------

template <int kColumns>
struct ForwardSizes {
  static constexpr int kPer = kColumns <= 128 ? 4 : 2;
  static constexpr int kRows = kPer * kSide;
  static constexpr int kTile = kRows * kStride<kColumns>;
  static constexpr size_t kSharedBytes = (2 * kTile + kRows * kStride<kRows>)*sizeof(float);
};

template <int kColumns>
__global__ __launch_bounds__(kThreads, 1) void forward_kernel(ForwardArguments<float> a) {
  using S = ForwardSizes<kColumns>;
  constexpr int kPer = S::kPer;
  DocumentTile tile;
  int head = 0;
  if (!task_of_block(a.queries, a.heads.heads, tile, head)) return;
  auto* q_tile = dynamic_shared<float>();
  float* const kv_tile = q_tile + S::kTile;  // keys, then values
  float* const p_tile = kv_tile + S::kTile;

  const int D = a.heads.head_size;
  const int first_query = tile.tile * S::kRows;
  const int queries = min(S::kRows, tile.length - first_query);
  const int all_keys = a.keys.length_for(tile);
  const int keys = a.keys.causal ? min(all_keys, first_query + S::kRows) : all_keys;  // that some query sees
  const int64_t kv_at = a.keys.begin_for(tile) * a.inputs.kv_stride + static_cast<int64_t>(head / a.heads.group()) * D;
  const int64_t batch_row = tile.begin + first_query;
  const int64_t width = static_cast<int64_t>(a.heads.heads) * D;
  const int64_t out_at = batch_row * width + static_cast<int64_t>(head) * D;
  const int64_t in_head = head * a.heads.tokens + batch_row;
  load_tile<S::kRows, kColumns>(q_tile, a.inputs.q + batch_row * a.inputs.q_stride + static_cast<int64_t>(head) * D,
                                a.inputs.q_stride, queries, D);

  float maxima[kPer];    // of the scores, before their scaling
  float divisors[kPer];  // of this thread's columns; the row's threads' together are the row's
  Sums<kPer, kColumns> out;
  clear(out);
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    maxima[i] = kHidden;
    divisors[i] = 0;
    const int r = row() + kSide * i;
    if (a.first || r >= queries) continue;
    maxima[i] = a.state.maxima[in_head + r];
    if (column() == 0) divisors[i] = a.state.divisors[in_head + r];
    for_each_column<kColumns>(D, [&](int c, int at) { out[i][at] = a.state.sums[out_at + r * width + c]; });
  }

  const float scale = a.heads.scale_log2();
  for (int key = 0; key < keys; key += S::kRows) {
    const int64_t from = kv_at + key * a.inputs.kv_stride;
    __syncthreads();  // the values before are no longer read
    load_tile<S::kRows, kColumns>(kv_tile, a.inputs.k + from, a.inputs.kv_stride, keys - key, D);
    __syncthreads();
    Scores<kPer> scores;
    multiply_rows<kPer, kColumns>(q_tile, kv_tile, scores);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int seen = a.keys.causal ? first_query + row() + kSide * i + 1 : keys;
      float maximum = maxima[i];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        if (key + column() + kSide * j >= seen) scores[i][j] = kHidden;
        maximum = fmaxf(maximum, scores[i][j]);
      }
      maximum = over_row<true>(maximum);
      const float shift = maximum * scale;
      // From the shifts as they were used: exactly 1 for a maximum that stays.
      const float correction = exp2f(maxima[i] * scale - shift);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        scores[i][j] = exp2f(fmaf(scores[i][j], scale, -shift));
        sum += scores[i][j];
      }
      maxima[i] = maximum;
      divisors[i] = divisors[i] * correction + sum;
#pragma unroll
      for (int c = 0; c < Columns<kColumns>::kPerThread; ++c) out[i][c] *= correction;
    }
    store_scores<kPer>(scores, p_tile);
    __syncthreads();  // the keys are no longer read, the probabilities are there
    load_tile<S::kRows, kColumns>(kv_tile, a.inputs.v + from, a.inputs.kv_stride, keys - key, D);
    __syncthreads();
    add_weighted_rows<kPer, kColumns>(p_tile, kv_tile, out);
  }

#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float divisor = over_row<false>(divisors[i]);
    const int r = row() + kSide * i;
    if (r >= queries) continue;
    const bool finishes = a.state.sums == nullptr;
    if (column() == 0) {
      if (finishes) {
        a.log_sum_exp[in_head + r] = log_sum_of(maxima[i], divisor, a.heads.scale);
      } else {
        a.state.maxima[in_head + r] = maxima[i];
        a.state.divisors[in_head + r] = divisor;
      }
    }
    const float inverse = 1.0F / divisor;
    float* const to = (finishes ? a.out : a.state.sums) + out_at + r * width;
    for_each_column<kColumns>(D, [&](int c, int at) { to[c] = finishes ? out[i][at] * inverse : out[i][at]; });
  }
}

// --- Backward --------------------------------------------------------------------------------------------------------

template <int kColumns>
struct BackwardSizes {
  static constexpr int kPer = kColumns <= 64 ? 4 : 2;
  static constexpr int kRows = kPer * kSide;
  static constexpr int kTile = kRows * kStride<kColumns>;
  static constexpr int kScores = kRows * kStride<kRows>;
  static constexpr size_t kSharedBytesOfQueries = (4 * kTile + kScores) * sizeof(float);
  static constexpr size_t kSharedBytesOfKeys = (4 * kTile + 2 * kScores) * sizeof(float);
};

template <int kColumns>
__global__ __launch_bounds__(kThreads, 1) void queries_kernel(BackwardArguments<float> a) {
  using S = BackwardSizes<kColumns>;
  constexpr int kPer = S::kPer;
  DocumentTile tile;
  int head = 0;
  if (!task_of_block(a.queries, a.heads.heads, tile, head)) return;
  auto* q_tile = dynamic_shared<float>();
  float* const d_out_tile = q_tile + S::kTile;
  float* const k_tile = d_out_tile + S::kTile;
  float* const v_tile = k_tile + S::kTile;
  float* const ds_tile = v_tile + S::kTile;

  const int D = a.heads.head_size;
  const int first_query = tile.tile * S::kRows;
  const int queries = min(S::kRows, tile.length - first_query);
  const int all_keys = a.keys_of_queries.length_for(tile);
  const bool causal = a.keys_of_queries.causal;
  const int keys = causal ? min(all_keys, first_query + S::kRows) : all_keys;  // that some query sees
  const int64_t kv_at =
      a.keys_of_queries.begin_for(tile) * a.inputs.kv_stride + static_cast<int64_t>(head / a.heads.group()) * D;
  const int64_t batch_row = tile.begin + first_query;
  const int64_t width = static_cast<int64_t>(a.heads.heads) * D;
  const int64_t at_head = static_cast<int64_t>(head) * D;
  load_tile<S::kRows, kColumns>(q_tile, a.inputs.q + batch_row * a.inputs.q_stride + at_head, a.inputs.q_stride,
                                queries, D);
  load_tile<S::kRows, kColumns>(d_out_tile, a.d_out + batch_row * width + at_head, width, queries, D);
  float2 rows[kPer];  // QueryRow
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int r = row() + kSide * i;
    rows[i] = r < queries ? a.rows[head * a.heads.tokens + batch_row + r] : make_float2(0, 0);
  }
  Sums<kPer, kColumns> dq;
  clear(dq);

  const float scale = a.heads.scale_log2();
  for (int key = 0; key < keys; key += S::kRows) {
    const int64_t from = kv_at + key * a.inputs.kv_stride;
    __syncthreads();  // the keys before are no longer read
    load_tile<S::kRows, kColumns>(k_tile, a.inputs.k + from, a.inputs.kv_stride, keys - key, D);
    load_tile<S::kRows, kColumns>(v_tile, a.inputs.v + from, a.inputs.kv_stride, keys - key, D);
    __syncthreads();
    Scores<kPer> scores;
    Scores<kPer> gradients;
    multiply_rows<kPer, kColumns>(q_tile, k_tile, scores);
    multiply_rows<kPer, kColumns>(d_out_tile, v_tile, gradients);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int seen = causal ? first_query + row() + kSide * i + 1 : keys;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        // A key that is not there has a score of 0, and any exponential.
        const bool hides = key + column() + kSide * j >= seen;
        const float p = hides ? 0 : exp2f(fmaf(scores[i][j], scale, -rows[i].x));
        gradients[i][j] = p * (gradients[i][j] - rows[i].y);
      }
    }
    store_scores<kPer>(gradients, ds_tile);
    __syncthreads();
    add_weighted_rows<kPer, kColumns>(ds_tile, k_tile, dq);
  }
  write_gradient<kPer, kColumns>(dq, a.heads.scale, !a.first, queries, D, a.dq + batch_row * a.q_stride + at_head,
                                 a.q_stride);
}

template <int kColumns>
__global__ __launch_bounds__(kThreads, 1) void keys_kernel(BackwardArguments<float> a) {
  using S = BackwardSizes<kColumns>;
  constexpr int kPer = S::kPer;
  DocumentTile tile;
  int kv_head = 0;
  if (!task_of_block(a.key_tiles, a.heads.kv_heads, tile, kv_head)) return;
  auto* k_tile = dynamic_shared<float>();
  float* const v_tile = k_tile + S::kTile;
  float* const q_tile = v_tile + S::kTile;
  float* const d_out_tile = q_tile + S::kTile;
  float* const p_tile = d_out_tile + S::kTile;
  float* const ds_tile = p_tile + S::kScores;

  const int D = a.heads.head_size;
  const int first_key = tile.tile * S::kRows;
  const int keys = min(S::kRows, tile.length - first_key);
  const int queries = a.queries_of_keys.length_for(tile);
  const int64_t query_begin = a.queries_of_keys.begin_for(tile);
  const bool causal = a.queries_of_keys.causal;
  const int64_t width = static_cast<int64_t>(a.heads.heads) * D;
  const int64_t batch_key = tile.begin + first_key;
  const int64_t at_kv_head = static_cast<int64_t>(kv_head) * D;
  load_tile<S::kRows, kColumns>(k_tile, a.inputs.k + batch_key * a.inputs.kv_stride + at_kv_head, a.inputs.kv_stride,
                                keys, D);
  load_tile<S::kRows, kColumns>(v_tile, a.inputs.v + batch_key * a.inputs.kv_stride + at_kv_head, a.inputs.kv_stride,
                                keys, D);
  Sums<kPer, kColumns> dk;
  Sums<kPer, kColumns> dv;
  clear(dk);
  clear(dv);

  const float scale = a.heads.scale_log2();
  const int group = a.heads.group();
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int query = causal ? first_key : 0; query < queries; query += S::kRows) {
      const int64_t batch_query = query_begin + query;
      const int64_t at_head = static_cast<int64_t>(head) * D;
      __syncthreads();  // the queries before are no longer read
      load_tile<S::kRows, kColumns>(q_tile, a.inputs.q + batch_query * a.inputs.q_stride + at_head, a.inputs.q_stride,
                                    queries - query, D);
      load_tile<S::kRows, kColumns>(d_out_tile, a.d_out + batch_query * width + at_head, width, queries - query, D);
      __syncthreads();
      Scores<kPer> scores;
      Scores<kPer> gradients;
      multiply_rows<kPer, kColumns>(k_tile, q_tile, scores);
      multiply_rows<kPer, kColumns>(v_tile, d_out_tile, gradients);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int q = column() + kSide * j;
        // Queries that are not there have zeros everywhere, and add nothing.
        const float2 of_query =
            query + q < queries ? a.rows[head * a.heads.tokens + batch_query + q] : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const bool hides = causal && first_key + row() + kSide * i > query + q;
          const float p = hides ? 0 : exp2f(fmaf(scores[i][j], scale, -of_query.x));
          scores[i][j] = p;
          gradients[i][j] = p * (gradients[i][j] - of_query.y);
        }
      }
      store_scores<kPer>(scores, p_tile);
      store_scores<kPer>(gradients, ds_tile);
      __syncthreads();
      add_weighted_rows<kPer, kColumns>(p_tile, d_out_tile, dv);
      add_weighted_rows<kPer, kColumns>(ds_tile, q_tile, dk);
    }
  }
  const int64_t to = batch_key * a.kv_stride + at_kv_head;
  write_gradient<kPer, kColumns>(dk, a.heads.scale, false, keys, D, a.dk + to, a.kv_stride);
  write_gradient<kPer, kColumns>(dv, 1.0F, false, keys, D, a.dv + to, a.kv_stride);
}

/// Calls work(integral_constant<columns>) with the head size rounded up to one that there are kernels for.
template <class Work>
auto with_columns(int64_t head_size, Work&& work) {
  if (head_size <= 32) return work(std::integral_constant<int, 32>());
  if (head_size <= 64) return work(std::integral_constant<int, 64>());
  if (head_size <= 128) return work(std::integral_constant<int, 128>());
  return work(std::integral_constant<int, 256>());
}

}  // namespace

int forward_tile_rows_fp32(int64_t head_size) {
  return with_columns(head_size, [](auto columns) { return ForwardSizes<columns()>::kRows; });
}
int query_tile_rows_fp32(int64_t head_size) {
  return with_columns(head_size, [](auto columns) { return BackwardSizes<columns()>::kRows; });
}
int key_tile_rows_fp32(int64_t head_size) { return query_tile_rows_fp32(head_size); }

void start_forward(const Stream& stream, int64_t blocks, const ForwardArguments<float>& arguments) {
  with_columns(arguments.heads.head_size, [&](auto columns) {
    launch(stream, forward_kernel<columns()>, blocks_for(blocks, 1), kThreads, ForwardSizes<columns()>::kSharedBytes,
           arguments);
  });
}

void start_backward_queries(const Stream& stream, int64_t blocks, const BackwardArguments<float>& arguments) {
  with_columns(arguments.heads.head_size, [&](auto columns) {
    launch(stream, queries_kernel<columns()>, blocks_for(blocks, 1), kThreads,
           BackwardSizes<columns()>::kSharedBytesOfQueries, arguments);
  });
}

void start_backward_keys(const Stream& stream, int64_t blocks, const BackwardArguments<float>& arguments) {
  with_columns(arguments.heads.head_size, [&](auto columns) {
    launch(stream, keys_kernel<columns()>, blocks_for(blocks, 1), kThreads,
           BackwardSizes<columns()>::kSharedBytesOfKeys, arguments);
  });
}

}  // namespace hat::cuda::attention
