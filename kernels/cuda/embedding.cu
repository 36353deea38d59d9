#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 128;

__global__ void look_up(int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions, const float* table,
                        const float* position_table, float* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= T * C) return;
  const int64_t t = i / C;
  const int64_t c = i % C;
  float value = table[static_cast<int64_t>(tokens[t]) * C + c];
  if (position_table != nullptr) value += position_table[static_cast<int64_t>(positions[t]) * C + c];
  y[i] = value;
}

/// A block for each row of dy. That of the first row with an index adds up all rows with it, in their order, so that no
/// two blocks write to a row of the table, and the bits do not depend on who comes first. Others find that there was
/// one before and end.
__global__ void add_rows(int64_t T, int64_t C, const int32_t* indices, const float* dy, float* d_table) {
  const int64_t first = block_number();
  if (first >= T) return;
  const int32_t index = indices[first];
  for (int64_t begin = 0; begin < first; begin += kThreads) {
    const int64_t t = begin + threadIdx.x;
    if (__syncthreads_or(t < first && indices[t] == index) != 0) return;
  }
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    float sum = dy[first * C + c];
    for (int64_t t = first + 1; t < T; ++t) {
      if (indices[t] == index) sum += dy[t * C + c];
    }
    d_table[static_cast<int64_t>(index) * C + c] += sum;
  }
}

}  // namespace

void embedding_forward(const Stream& stream, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                       const float* table, const float* position_table, float* y) {
  if (T * C == 0) return;
  launch(stream, look_up, blocks_for(T * C, kThreads), kThreads, 0, T, C, tokens, positions, table, position_table, y);
}

void embedding_backward(const Stream& stream, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                        const float* dy, float* d_table, float* d_position_table) {
  if (T * C == 0) return;
  launch(stream, add_rows, blocks_for(T, 1), kThreads, 0, T, C, tokens, dy, d_table);
  if (d_position_table == nullptr) return;
  launch(stream, add_rows, blocks_for(T, 1), kThreads, 0, T, C, positions, dy, d_position_table);
}

}  // namespace hat::cuda
