#pragma once
#include <cstdint>
#include <string>

namespace hat {

enum class DeviceKind { cpu, cuda };

class CudaStream;

/// Where a worker computes. `threads` is the number of threads that kernels may use there (CPU only).
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  int threads = 1;
};

/// "cpu (2 threads)".
std::string describe(const Device& device);

/// The order in which kernels and copies run: two operations on one stream never overlap. On the CPU every operation
/// has ended when its call returns, so `synchronize` has nothing to wait for; on an accelerator, results may be read by
/// the host only after it.
class Stream {
 public:
  explicit Stream(const Device& device) : device_(device) {}
  /// Of a CUDA device; `cuda` must outlive this object.
  Stream(const Device& device, CudaStream& cuda) : device_(device), cuda_(&cuda) {}
  const Device& device() const { return device_; }
  int threads() const { return device_.threads; }
  CudaStream* cuda() const { return cuda_; }  ///< null on the CPU
  void synchronize() const {}

 private:
  Device device_;
  CudaStream* cuda_ = nullptr;
};

}  // namespace hat
