#pragma once
// Stands in for the CUDA runtime's header in tests (cuda_emulation.hpp).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_emulation.hpp"

#define CUDART_VERSION 13000
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

namespace cuda_emulation {
/// A coordinate of the thread that runs.
struct Coordinate {
  const Index& (*index)();
  unsigned int Index::*member;
  operator unsigned int() const { return index().*member; }
};
struct Coordinates {
  Coordinate x, y, z;
  constexpr explicit Coordinates(const Index& (*index)())
      : x{index, &Index::x}, y{index, &Index::y}, z{index, &Index::z} {}
};
}  // namespace cuda_emulation
inline constexpr cuda_emulation::Coordinates threadIdx(cuda_emulation::thread_index);
inline constexpr cuda_emulation::Coordinates blockIdx(cuda_emulation::block_index);
inline constexpr cuda_emulation::Coordinates blockDim(cuda_emulation::block_size);
inline constexpr cuda_emulation::Coordinates gridDim(cuda_emulation::grid_size);
inline constexpr int warpSize = 32;

struct dim3 {
  unsigned int x = 1;
  unsigned int y = 1;
  unsigned int z = 1;
  constexpr dim3(unsigned int a = 1, unsigned int b = 1, unsigned int c = 1) : x(a), y(b), z(c) {}
};

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }

// --- Inside kernels
// ----------------------------------------------------------------------------------------------------
inline void __syncthreads() { cuda_emulation::block_barrier(); }
inline int __syncthreads_count(int predicate) { return cuda_emulation::block_barrier_count(predicate != 0); }
inline int __syncthreads_or(int predicate) { return cuda_emulation::block_barrier_count(predicate != 0) > 0 ? 1 : 0; }
inline void __syncwarp(unsigned int mask = 0xffffffffU) {
  const cuda_emulation::WarpMeeting meeting("__syncwarp", mask, nullptr, 0);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace cuda_emulation {
template <class T>
T from_lane(const WarpMeeting& meeting, int lane) {
  T value;
  std::memcpy(&value, meeting.from(lane), sizeof value);
  return value;
}
/// The lane that a shuffle over segments of `width` reads from; itself where that is outside.
inline int in_segment(int source, int width) {
  const int first = lane() / width * width;
  return source >= first && source < first + width ? source : lane();
}
}  // namespace cuda_emulation

template <class T>
T __shfl_sync(unsigned int mask, T value, int source, int width = warpSize) {
  const cuda_emulation::WarpMeeting meeting("__shfl_sync", mask, &value, sizeof value);
  return cuda_emulation::from_lane<T>(meeting, cuda_emulation::lane() / width * width + source % width);
}
template <class T>
T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = warpSize) {
  const cuda_emulation::WarpMeeting meeting("__shfl_xor_sync", mask, &value, sizeof value);
  return cuda_emulation::from_lane<T>(meeting, cuda_emulation::in_segment(cuda_emulation::lane() ^ bits, width));
}
template <class T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = warpSize) {
  const cuda_emulation::WarpMeeting meeting("__shfl_down_sync", mask, &value, sizeof value);
  return cuda_emulation::from_lane<T>(
      meeting, cuda_emulation::in_segment(cuda_emulation::lane() + static_cast<int>(delta), width));
}
template <class T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = warpSize) {
  const cuda_emulation::WarpMeeting meeting("__shfl_up_sync", mask, &value, sizeof value);
  return cuda_emulation::from_lane<T>(
      meeting, cuda_emulation::in_segment(cuda_emulation::lane() - static_cast<int>(delta), width));
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
  const unsigned char mine = predicate != 0 ? 1 : 0;
  const cuda_emulation::WarpMeeting meeting("__ballot_sync", mask, &mine, sizeof mine);
  unsigned int votes = 0;
  for (int l = 0; l < warpSize; ++l) {
    if ((mask >> l & 1U) != 0 && cuda_emulation::from_lane<unsigned char>(meeting, l) == 1) votes |= 1U << l;
  }
  return votes;
}
inline int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0 ? 1 : 0; }
inline int __all_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) == mask ? 1 : 0; }
inline unsigned int __activemask() = delete;  // what it gives is not defined well enough to emulate

// One thread runs at a time, so these are atomic.
template <class T>
T atomicAdd(T* at, T value) {
  return std::exchange(*at, *at + value);
}
template <class T>
T atomicMax(T* at, T value) {
  return std::exchange(*at, std::max(*at, value));
}
template <class T>
T atomicExch(T* at, T value) {
  return std::exchange(*at, value);
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
  return *at == expected ? std::exchange(*at, value) : *at;
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline void sincospi(double x, double* s, double* c) {
  constexpr double kPi = 3.141592653589793238463;
  const double in_one_turn = x - 2 * std::round(x / 2);  // exact
  *s = std::sin(kPi * in_one_turn);
  *c = std::cos(kPi * in_one_turn);
}
inline float __frcp_rn(float x) { return 1.0F / x; }
inline unsigned int __float_as_uint(float x) {
  unsigned int bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned int bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(x)); }
using std::max;
using std::min;

// --- The runtime
// -------------------------------------------------------------------------------------------------------
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
struct cudaStreamOfEmulation;
struct cudaEventOfEmulation;
using cudaStream_t = cudaStreamOfEmulation*;
using cudaEvent_t = cudaEventOfEmulation*;
inline constexpr unsigned int cudaStreamNonBlocking = 1;
inline constexpr unsigned int cudaEventDisableTiming = 2;
inline constexpr unsigned int cudaHostAllocDefault = 0;
inline constexpr unsigned int cudaHostAllocPortable = 1;
inline constexpr unsigned int cudaHostRegisterPortable = 1;

struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned int numAttrs = 0;
};
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int multiProcessorCount;
  int major;
  int minor;
  size_t sharedMemPerBlockOptin;
};

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

namespace cuda_emulation {
/// Where a stream is; the default stream is where the thread is.
int device_of(cudaStream_t stream);
/// Puts work into a stream.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Work with others that may not be there yet: called again until it gives true. Whoever asks for an event or a stream
/// calls it once; who waits goes on calling.
void enqueue_polled(cudaStream_t stream, std::function<bool()> work);
/// Checks the limits of a launch, and enqueues it.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread);
cudaError_t allow_shared(const void* kernel, int bytes);
}  // namespace cuda_emulation

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int bytes) {
  return cuda_emulation::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return cuda_emulation::launch(*config, reinterpret_cast<const void*>(kernel),
                                [kernel, values = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
                                  std::apply(kernel, values);
                                });
}
