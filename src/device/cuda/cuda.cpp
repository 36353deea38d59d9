#include "hat/device/cuda.hpp"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdlib>
#include <span>

#include "hat/core/error.hpp"
#include "hat/device/cuda_stream.hpp"
#include "hat/device/profiler.hpp"

namespace hat::cuda {

namespace {

// By default CUDA loads a kernel at its first launch, which may wait for all that the device is doing. While it sums
// with NCCL, that waits for other ranks, which may wait for this one. So kernels are loaded with the device's context,
// unless the user wants it otherwise. Before main, where no other thread reads the environment.
[[maybe_unused]] const int loads_eagerly = ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);

std::string hexadecimal(std::span<const char> bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// The usual reasons, in fewer words than CUDA has for them.
std::string problem_text(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
      return "no device";
    case cudaErrorInsufficientDriver:  // what the runtime says, too, where there is none at all
      return "no driver, or one too old";
    default:
      return fmt::format("{} ({})", cudaGetErrorName(error), cudaGetErrorString(error));
  }
}

/// False while there is something to wait for.
bool has_ended(cudaError_t result, const char* what) {
  if (result == cudaErrorNotReady) return false;
  check(result, what);
  return true;
}

}  // namespace

std::string built_for() { return "sm_80, sm_90 and PTX"; }

VisibleDevices visible_devices() {
  VisibleDevices found;
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int device = 0; error == cudaSuccess && device < count; ++device) {
    cudaDeviceProp properties{};
    error = cudaGetDeviceProperties(&properties, device);
    found.devices.push_back({.name = properties.name, .id = hexadecimal(properties.uuid.bytes)});
  }
  if (error == cudaSuccess && count > 0) return found;
  static_cast<void>(cudaGetLastError());  // it is told here, and must not be taken for that of a later call
  found.devices.clear();
  found.problem = problem_text(error == cudaSuccess ? cudaErrorNoDevice : error);
  return found;
}

int64_t free_bytes(int device) {
  size_t free = 0;
  size_t total = 0;
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

void* allocate(int device, int64_t bytes) {
  void* data = nullptr;
  check(cudaSetDevice(device), "cudaSetDevice");
  const cudaError_t result = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (result == cudaErrorMemoryAllocation) {
    throw Error(fmt::format("out of memory: CUDA device {} cannot allocate {} bytes (device = cpu computes without it)",
                            device, bytes));
  }
  check(result, "cudaMalloc");
  return data;
}

void* allocate_pinned(int device, int64_t bytes) {
  void* data = nullptr;
  check(cudaSetDevice(device), "cudaSetDevice");
  const cudaError_t result = cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
  if (result == cudaErrorMemoryAllocation) {
    throw Error(fmt::format("out of memory: cannot allocate {} bytes of page-locked memory", bytes));
  }
  check(result, "cudaHostAlloc");
  return data;
}

void release(int device, void* data) noexcept {
  static_cast<void>(cudaSetDevice(device));
  static_cast<void>(cudaFree(data));
}

void release_pinned(void* data) noexcept { static_cast<void>(cudaFreeHost(data)); }

bool pin(int device, void* data, int64_t bytes) {
  check(cudaSetDevice(device), "cudaSetDevice");
  const bool pinned = cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterPortable) == cudaSuccess;
  if (!pinned) static_cast<void>(cudaGetLastError());
  return pinned;
}

void unpin(void* data) noexcept { static_cast<void>(cudaHostUnregister(data)); }

std::shared_ptr<CudaStream> make_stream(int device, const char* purpose) {
  auto stream = std::make_shared<CudaStream>(device);
  name_profiler_stream(stream->get(), purpose);
  return stream;
}

void synchronize(const CudaStream& stream) { stream.synchronize(); }
bool is_done(const CudaStream& stream) { return has_ended(cudaStreamQuery(stream.get()), "cudaStreamQuery"); }
std::shared_ptr<CudaEvent> record(const CudaStream& stream) { return std::make_shared<CudaEvent>(stream); }
void wait_for(const CudaStream& stream, const CudaEvent& event) {
  check(cudaStreamWaitEvent(stream.get(), event.get(), 0), "cudaStreamWaitEvent");
}
void synchronize(const CudaEvent& event) { check(cudaEventSynchronize(event.get()), "cudaEventSynchronize"); }
bool is_done(const CudaEvent& event) { return has_ended(cudaEventQuery(event.get()), "cudaEventQuery"); }

void copy_to_device(const CudaStream& stream, const void* host, void* device, int64_t bytes) {
  check(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync to the device");
}
void copy_to_host(const CudaStream& stream, const void* device, void* host, int64_t bytes) {
  check(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream.get()),
        "cudaMemcpyAsync to the host");
}

}  // namespace hat::cuda
