#include "hat/device/cuda_stream.hpp"

#include <algorithm>

#include "hat/core/error.hpp"
#include "hat/device/cuda.hpp"

namespace hat {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw Error(fmt::format("{}: {} ({})", what, cudaGetErrorName(result), cudaGetErrorString(result)));
}

CudaStream::CudaStream(int device) : device_(device) {
  check(cudaSetDevice(device_), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CudaStream::~CudaStream() {
  // Nobody could do anything about what these say.
  static_cast<void>(cudaSetDevice(device_));
  products_.reset();
  static_cast<void>(cudaStreamDestroy(stream_));
  static_cast<void>(cudaFree(scratch_));
}

void CudaStream::make_current() const { check(cudaSetDevice(device_), "cudaSetDevice"); }

void CudaStream::synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

void* CudaStream::scratch(size_t bytes) {
  constexpr size_t kLeast = size_t{1} << 20;
  if (bytes <= scratch_bytes_) return scratch_;
  make_current();
  // cudaFree waits for everything that may still use it.
  check(cudaFree(scratch_), "cudaFree");
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  const size_t wanted = std::max(kLeast, bytes);
  scratch_ = cuda::allocate(device_, static_cast<int64_t>(wanted));
  scratch_bytes_ = wanted;
  return scratch_;
}

CudaEvent::CudaEvent(const CudaStream& stream) {
  stream.make_current();  // an event is of the device that is current now, and only its streams can record it
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  const cudaError_t result = cudaEventRecord(event_, stream.get());
  if (result == cudaSuccess) return;
  static_cast<void>(cudaEventDestroy(event_));
  check(result, "cudaEventRecord");
}

CudaEvent::~CudaEvent() { static_cast<void>(cudaEventDestroy(event_)); }

}  // namespace hat
