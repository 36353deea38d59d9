#pragma once
// How the attention of a batch is cut into blocks, and what its kernels are told. A whole document is one causal
// segment that begins and finishes: the same kernels do both.
#include "cuda_support.cuh"

namespace hat::cuda::attention {

inline constexpr int kLeastTileRows = 32;  ///< of all kernels' tiles
inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kHidden = -1e30F;  ///< a score whose exponential is 0, far enough from infinity to compute with

/// A tile of rows, of queries or of keys, of a document: rows [begin + tile rows, ...) of those [begin, begin +
/// length).
struct DocumentTile {
  int32_t begin;
  int32_t length;
  int32_t tile;
};

/// The tiles of all documents, in the order in which their blocks start: the most work first, so that little work fills
/// the gaps at the end. The host does not know how many there are, only how many there may be: the offsets are on the
/// device.
struct TileTable {
  int32_t* count;
  DocumentTile* tiles;
};

inline int64_t most_tiles(int64_t rows, int64_t documents, int64_t tile_rows) { return rows / tile_rows + documents; }

/// Which tiles of a causal document have the most work: the last queries see most keys, the first keys are seen by most
/// queries.
enum class MostWork { last_tile, first_tile };

/// Rows that are cut into tiles: those of the documents of a batch, or, with null offsets, of one segment.
struct Rows {
  const int32_t* offsets;
  int64_t documents;
  int32_t length;
  __device__ int32_t begin(int64_t document) const { return offsets == nullptr ? 0 : offsets[document]; }
  __device__ int32_t length_of(int64_t document) const {
    return offsets == nullptr ? length : offsets[document + 1] - offsets[document];
  }
};

/// Fills the table for tiles of so many rows.
void number_tiles(const Stream& stream, const Rows& rows, int tile_rows, MostWork most_work, const TileTable& table);

/// The other side of a tile: with a segment, so many rows from 0 on; in a batch (negative) those of the same document.
struct OtherRows {
  int32_t length = -1;
  bool causal = true;  ///< queries and keys are the same tokens
  __device__ int begin_for(const DocumentTile& tile) const { return length < 0 ? tile.begin : 0; }
  __device__ int length_for(const DocumentTile& tile) const { return length < 0 ? tile.length : length; }
};

/// q, k and v: rows q_stride and kv_stride elements apart, heads `columns`.
template <class T>
struct Inputs {
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride;
  int64_t kv_stride;
  int columns;  ///< of a head that are stored: D, or more where zeros fill its rows
};

struct Heads {
  int64_t tokens;  ///< T, of the queries
  int heads;       ///< H
  int kv_heads;    ///< K
  int head_size;   ///< D
  float scale;     ///< 1 / sqrt(D)
  __device__ int group() const { return heads / kv_heads; }
  /// What a score is multiplied with so that powers of two are its exponential.
  __device__ float scale_log2() const { return scale * kLog2E; }
};

template <class T>
struct ForwardArguments {
  Heads heads;
  Inputs<T> inputs;
  TileTable queries;
  OtherRows keys;
  // One of these two: results, or the running softmax.
  T* out;
  float* log_sum_exp;
  AttentionState state;
  bool first;  ///< the state is not there yet
};

/// What the backward pass knows of a query and head: P = 2^(score scale_log2 - shift), dS = P (dP - delta).
struct QueryRow {
  float shift;  ///< log2 of the sum of the exponentials
  float delta;  ///< d_out . out
};

template <class T>
struct BackwardArguments {
  Heads heads;
  Inputs<T> inputs;
  const T* d_out;      ///< (T, H columns)
  const float2* rows;  ///< (H, T) of QueryRow
  TileTable queries;
  TileTable key_tiles;
  OtherRows keys_of_queries;
  OtherRows queries_of_keys;
  float* dq;  ///< rows of D per head, q_stride apart
  float* dk;
  float* dv;
  int64_t q_stride;
  int64_t kv_stride;
  bool first;  ///< dq is written, not added to
};

/// The task of a block: a tile and a head. False for the blocks beyond the last.
__device__ __forceinline__ bool task_of_block(const TileTable& table, int heads, DocumentTile& tile, int& head) {
  const int64_t number = block_number();
  const int64_t place = number / heads;
  if (place >= *table.count) return false;
  tile = table.tiles[place];
  head = static_cast<int>(number - place * heads);
  return true;
}

/// Softmax's end, for a row that has met all its keys; the same wherever it is.
__device__ __forceinline__ float log_sum_of(float maximum, float divisor, float scale) {
  return fmaf(maximum, scale, logf(divisor));
}

// The kernels of each element type; `tile_rows` of the tables that they want.
int forward_tile_rows_fp32(int64_t head_size);
int query_tile_rows_fp32(int64_t head_size);
int key_tile_rows_fp32(int64_t head_size);
void start_forward(const Stream& stream, int64_t blocks, const ForwardArguments<float>& arguments);
void start_backward_queries(const Stream& stream, int64_t blocks, const BackwardArguments<float>& arguments);
void start_backward_keys(const Stream& stream, int64_t blocks, const BackwardArguments<float>& arguments);

int forward_tile_rows_bf16(int64_t head_size);
int query_tile_rows_bf16(int64_t head_size);
int key_tile_rows_bf16(int64_t head_size);
void start_forward(const Stream& stream, int64_t blocks, const ForwardArguments<__nv_bfloat16>& arguments);
void start_backward_queries(const Stream& stream, int64_t blocks, const BackwardArguments<__nv_bfloat16>& arguments);
void start_backward_keys(const Stream& stream, int64_t blocks, const BackwardArguments<__nv_bfloat16>& arguments);

}  // namespace hat::cuda::attention
