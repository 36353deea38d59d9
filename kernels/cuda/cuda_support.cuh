#pragma once
// What the CUDA kernels share: launches, sums over warps and blocks, numbers as they are stored.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <hat_ptx.cuh>
#include <type_traits>
#include <utility>

#include "hat/device/cuda_stream.hpp"
#include "hat/kernels/operations.hpp"

namespace hat::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr unsigned int kAllLanes = 0xffffffffU;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Starts kernel(arguments...) on the stream. Throws Error when it cannot start.
template <class... Parameters, class... Arguments>
void launch(const Stream& stream, void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes,
            Arguments&&... arguments) {
  constexpr size_t kSharedWithoutAsking = 48 * 1024;
  stream.cuda()->make_current();
  if (shared_bytes > kSharedWithoutAsking) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned int>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.cuda()->get();
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
        "cudaLaunchKernelEx");
}

/// One block for `per_block` of `count` things each; large counts are spread over two dimensions, so there may be more.
inline dim3 blocks_for(int64_t count, int64_t per_block) {
  constexpr int64_t kMostBlocks = 1 << 30;
  const int64_t blocks = divide_up(count, per_block);
  const int64_t rows = divide_up(blocks, kMostBlocks);
  return {static_cast<unsigned int>(divide_up(blocks, rows)), static_cast<unsigned int>(rows)};
}
/// Number of this block among those of `blocks_for`.
__device__ __forceinline__ int64_t block_number() { return static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x; }

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int bits = kWarpThreads / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}
__device__ __forceinline__ float warp_maximum(float value) {
#pragma unroll
  for (int bits = kWarpThreads / 2; bits > 0; bits /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, bits));
  return value;
}

/// Sum over a block of kThreads, the same in every thread, added in the same order every time. `memory`: kThreads / 32
/// of shared memory that nobody else uses until the next barrier.
template <int kThreads, class T>
__device__ __forceinline__ T block_sum(T value, T* memory) {
  constexpr int kWarps = kThreads / kWarpThreads;
  value = warp_sum(value);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % kWarpThreads == 0) memory[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  T sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += memory[warp];
  return sum;
}

// Numbers in memory: fp32, or bf16 that is read and rounded on the way.
__device__ __forceinline__ float read_value(const float* at) { return *at; }
__device__ __forceinline__ float read_value(const __nv_bfloat16* at) { return __bfloat162float(*at); }
__device__ __forceinline__ void write_value(float* at, float value) { *at = value; }
__device__ __forceinline__ void write_value(__nv_bfloat16* at, float value) { *at = __float2bfloat16_rn(value); }

/// Calls work(pointer) with the pointer's real type.
template <class Work>
void with_element(ConstValues values, Work&& work) {
  if (values.element() == Element::fp32) {
    work(static_cast<const float*>(values.data()));
  } else {
    work(static_cast<const __nv_bfloat16*>(values.data()));
  }
}
template <class Work>
void with_element(Values values, Work&& work) {
  if (values.element() == Element::fp32) {
    work(static_cast<float*>(values.data()));
  } else {
    work(static_cast<__nv_bfloat16*>(values.data()));
  }
}

}  // namespace hat::cuda
