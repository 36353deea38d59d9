#include "cuda_kernels.hpp"
#include "cuda_support.cuh"

namespace hat::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;

__global__ void one_by_one(int64_t rows, int64_t columns, const float* x, int64_t x_stride, __nv_bfloat16* y,
                           int64_t y_stride) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= rows * columns) return;
  const int64_t row = i / columns;
  const int64_t column = i % columns;
  y[row * y_stride + column] = __float2bfloat16_rn(x[row * x_stride + column]);
}

/// Four at a time, of rows that are one behind the other.
__global__ void by_vectors(int64_t count, const float4* x, uint2* y) {
  const int64_t i = block_number() * kThreads + threadIdx.x;
  if (i >= count) return;
  const float4 value = x[i];
  const __nv_bfloat162 pairs[] = {__floats2bfloat162_rn(value.x, value.y), __floats2bfloat162_rn(value.z, value.w)};
  uint2 bits;
  memcpy(&bits, pairs, sizeof bits);
  y[i] = bits;
}

}  // namespace

void round_rows(const Stream& stream, int64_t rows, int64_t columns, const float* x, int64_t x_stride, bfloat16* y,
                int64_t y_stride) {
  const int64_t count = rows * columns;
  if (count == 0) return;
  const bool is_dense = x_stride == columns && y_stride == columns && count % kVector == 0 &&
                        reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0 &&
                        reinterpret_cast<uintptr_t>(y) % sizeof(uint2) == 0;
  if (is_dense) {
    launch(stream, by_vectors, blocks_for(count / kVector, kThreads), kThreads, 0, count / kVector,
           reinterpret_cast<const float4*>(x), reinterpret_cast<uint2*>(y));
  } else {
    launch(stream, one_by_one, blocks_for(count, kThreads), kThreads, 0, rows, columns, x, x_stride,
           reinterpret_cast<__nv_bfloat16*>(y), y_stride);
  }
}

void round(const Stream& stream, int64_t n, const float* x, bfloat16* y) { round_rows(stream, 1, n, x, n, y, n); }

}  // namespace hat::cuda
