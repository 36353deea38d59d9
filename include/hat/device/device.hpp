#pragma once
#include <cstdint>
#include <string>

namespace hat {

enum class DeviceKind { cpu };

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
  const Device& device() const { return device_; }
  int threads() const { return device_.threads; }
  void synchronize() const {}

 private:
  Device device_;
};

}  // namespace hat
