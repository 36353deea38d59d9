#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

/// Only for sources that are compiled with CUDA.
namespace hat {

/// Throws Error with CUDA's name and text of the error, and what was tried.
void check(cudaError_t result, const char* what);

/// A stream of a device, and memory for what a kernel needs between its blocks. Owns both.
class CudaStream {
 public:
  explicit CudaStream(int device);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }
  /// Makes its device the current one of this thread, which launches, events and libraries go by.
  void make_current() const;
  void synchronize() const;
  /// At least `bytes` of device memory, of undefined content, for the work that is put into the stream next: what was
  /// put there before may still use the same memory, what comes later will. When it must grow, it waits for all that
  /// the device does: what works while others are waited for reserves before (Operations::reserve).
  void* scratch(size_t bytes);
  /// What the matrix products of the stream keep between calls; theirs alone. Ends before the stream.
  std::shared_ptr<void>& products() { return products_; }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  std::shared_ptr<void> products_;
};

/// A moment in a stream, of its device.
class CudaEvent {
 public:
  explicit CudaEvent(const CudaStream& stream);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace hat
