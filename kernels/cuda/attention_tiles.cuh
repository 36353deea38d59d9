#pragma once
// Tiles of bf16 in shared memory, and their products on tensor cores. g = lane / 4 and t = lane % 4 as in hat_ptx.cuh.
#include <cstring>

#include "cuda_support.cuh"

namespace hat::cuda::attention {

/// Rows of kColumns bf16 in shared memory, in chunks of 16 bytes. A chunk's place in its row is changed with the row,
/// so that the same chunk of 8 rows in turn, which is what ldmatrix reads at once, lies in different banks.
template <int kColumns>
struct SharedRows {
  static_assert(kColumns % 32 == 0);
  static constexpr int kChunk = 8;  // elements
  static constexpr int kChunks = kColumns / kChunk;
  // Rows of whole 128 bytes differ in 8 places, others in 4, and those next to each other in the half of 128 bytes.
  static constexpr bool kWhole = kColumns % 64 == 0;
  static constexpr int kGroup = kWhole ? 64 : 32;  // elements inside which chunks change places
  __device__ static int swizzle(int row) { return kWhole ? row % 8 : row / 2 % 4; }
  __device__ static int place(int row, int chunk) { return row * kColumns + kChunk * (chunk ^ swizzle(row)); }
};

/// Begins to copy rows x columns of global memory into a tile of kRows x kColumns, whose rest becomes zero. All rows of
/// global memory are aligned to 16 bytes, and columns is a multiple of 8.
template <int kRows, int kColumns, int kThreads>
__device__ __forceinline__ void begin_tile(__nv_bfloat16* tile, const __nv_bfloat16* from, int64_t stride, int rows,
                                           int columns) {
  using Shared = SharedRows<kColumns>;
  // Threads side by side copy one group of chunks, so that a thread's copies differ by constants in shared memory.
  constexpr int kRowThreads = Shared::kGroup / Shared::kChunk;
  constexpr int kRowStep = kThreads / kRowThreads;
  static_assert(kRows % kRowStep == 0 && kRowStep % 8 == 0);
  const int first_row = static_cast<int>(threadIdx.x) / kRowThreads;
  const int first_chunk = static_cast<int>(threadIdx.x) % kRowThreads;
  __nv_bfloat16* const to = tile + Shared::place(first_row, first_chunk);
  from += first_row * stride + first_chunk * Shared::kChunk;
#pragma unroll
  for (int row = 0; row < kRows; row += kRowStep, from += kRowStep * stride) {
#pragma unroll
    for (int column = 0; column < kColumns; column += Shared::kGroup) {
      const bool is_inside = first_row + row < rows && first_chunk * Shared::kChunk + column < columns;
      copy_async_16(to + row * kColumns + column, from + column, is_inside);
    }
  }
}

/// Where a lane finds its row of the four matrices of 16 x 16 elements of a tile.
template <int kColumns>
class LaneOfTile {
 public:
  /// Matrices: rows 0 and 8 on of the left half, then of the right half.
  __device__ static LaneOfTile rows_first() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    return {lane % 16, lane / 16};
  }
  /// Matrices: left and right half of rows 0 on, then of rows 8 on.
  __device__ static LaneOfTile halves_first() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
    return {lane / 16 * 8 + lane % 8, lane / 8 % 2};
  }
  /// Of those at rows [row, row + 16), columns [16 step, 16 step + 16). `row` is a multiple of 8, so that it does not
  /// change the swizzle.
  __device__ __forceinline__ const __nv_bfloat16* at(const __nv_bfloat16* tile, int row, int step) const {
    constexpr int kGroup = SharedRows<kColumns>::kGroup;
    const int column = 16 * step;
    return tile + row * kColumns + row_ + (column & ~(kGroup - 1)) + ((column & (kGroup - 1)) ^ chunk_);
  }

 private:
  __device__ LaneOfTile(int row, int half)
      : row_(row * kColumns), chunk_(SharedRows<kColumns>::kChunk * (half ^ SharedRows<kColumns>::swizzle(row))) {}
  int row_;
  int chunk_;
};

/// Sums of a warp: kRowTiles x kTiles tiles of 16 x 8, as multiply_add_bf16 has them.
template <int kRowTiles, int kTiles>
using Sums = float[kRowTiles][kTiles][4];

template <int kRowTiles, int kTiles>
__device__ __forceinline__ void clear(Sums<kRowTiles, kTiles>& sums) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][n][i] = 0;
    }
  }
}

/// sums (16 kRowTiles, 8 kTiles) = a b^T, with a the rows from a_row on of one tile and b those from b_row on of
/// another. kSteps of 16 columns are unrolled; the more, the more registers hold what is loaded ahead.
template <int kColumns, int kSteps, int kRowTiles, int kTiles>
__device__ __forceinline__ void multiply_rows(const __nv_bfloat16* a, int a_row, const __nv_bfloat16* b, int b_row,
                                              Sums<kRowTiles, kTiles>& sums) {
  static_assert(kTiles % 2 == 0);
  const auto a_lane = LaneOfTile<kColumns>::rows_first();
  const auto b_lane = LaneOfTile<kColumns>::halves_first();
  clear(sums);
#pragma unroll kSteps
  for (int step = 0; step < kColumns / 16; ++step) {
    uint32_t of_a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) load_matrices_4(of_a[r], a_lane.at(a, a_row + 16 * r, step));
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t of_b[4];
      load_matrices_4(of_b, b_lane.at(b, b_row + 8 * n, step));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add_bf16(sums[r][n], of_a[r], {of_b[0], of_b[1]});
        multiply_add_bf16(sums[r][n + 1], of_a[r], {of_b[2], of_b[3]});
      }
    }
  }
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits = 0;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// sums (16 kRowTiles, kColumns) += weights b, with the weights (16 kRowTiles, 8 kTiles) in registers, rounded to bf16,
/// and b the rows from b_row on of a tile.
template <int kColumns, int kRowTiles, int kTiles>
__device__ __forceinline__ void add_weighted_rows(const Sums<kRowTiles, kTiles>& weights, const __nv_bfloat16* b,
                                                  int b_row, Sums<kRowTiles, kColumns / 8>& sums) {
  static_assert(kTiles % 2 == 0);
  const auto b_lane = LaneOfTile<kColumns>::rows_first();
#pragma unroll
  for (int k = 0; k < kTiles; k += 2) {
    uint32_t of_a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      of_a[r][0] = pack_bf16(weights[r][k][0], weights[r][k][1]);
      of_a[r][1] = pack_bf16(weights[r][k][2], weights[r][k][3]);
      of_a[r][2] = pack_bf16(weights[r][k + 1][0], weights[r][k + 1][1]);
      of_a[r][3] = pack_bf16(weights[r][k + 1][2], weights[r][k + 1][3]);
    }
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
      uint32_t of_b[4];
      load_matrices_4_transposed(of_b, b_lane.at(b, b_row + 8 * k, step));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        multiply_add_bf16(sums[r][2 * step], of_a[r], {of_b[0], of_b[1]});
        multiply_add_bf16(sums[r][2 * step + 1], of_a[r], {of_b[2], of_b[3]});
      }
    }
  }
}

/// to (rows, columns) = scale sums, or +=. `to` is aligned to 8 bytes and its stride even, as head sizes are. Row by
/// row: beside 128 sums there are no registers for the addresses of all.
template <int kRowTiles, int kTiles>
__device__ __forceinline__ void write_gradient(const Sums<kRowTiles, kTiles>& sums, float scale, bool add, int rows,
                                               int columns, float* to, int64_t stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  rows -= lane / 4;
  columns -= 2 * (lane % 4);
  to += lane / 4 * stride + 2 * (lane % 4);
#pragma unroll
  for (int half = 0; half < 2 * kRowTiles; ++half, to += 8 * stride) {
    if (8 * half >= rows) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (8 * n >= columns) break;
      auto* at = reinterpret_cast<float2*>(to + 8 * n);
      const float2 before = add ? *at : make_float2(0, 0);
      const float* const pair = sums[half / 2][n] + 2 * (half % 2);
      *at = make_float2(before.x + scale * pair[0], before.y + scale * pair[1]);
    }
  }
}

/// Calls work(integral_constant<columns>) with the head size rounded up to one that there are kernels for.
template <class Work>
auto with_columns(int64_t head_size, Work&& work) {
  if (head_size <= 32) return work(std::integral_constant<int, 32>());
  if (head_size <= 64) return work(std::integral_constant<int, 64>());
  if (head_size <= 96) return work(std::integral_constant<int, 96>());
  if (head_size <= 128) return work(std::integral_constant<int, 128>());
  if (head_size <= 192) return work(std::integral_constant<int, 192>());
  return work(std::integral_constant<int, 256>());
}

}  // namespace hat::cuda::attention
