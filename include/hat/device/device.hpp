#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace hat {

enum class DeviceKind { cpu, cuda };
/// As in a deck: "cpu", "cuda".
inline const char* name_of(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }

/// Of CUDA, defined where that is built in (cuda_stream.hpp).
class CudaStream;
class CudaEvent;

/// Where a worker computes, and what its kernels may do there.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;      ///< CUDA: among the devices that this process sees
  int threads = 1;    ///< CPU: threads that kernels may use
  bool tf32 = false;  ///< CUDA: products in fp32 may round their operands to TF32 (10 bits of mantissa)
};

/// "cpu (2 threads)", "cuda device 0".
std::string describe(const Device& device);

/// A moment in a stream: what was put there before it. On the CPU, and of an object without one, it has come.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<CudaEvent> cuda) : cuda_(std::move(cuda)) {}
  /// Never blocks.
  bool is_done() const;
  void wait() const;
  const CudaEvent* cuda() const { return cuda_.get(); }

 private:
  std::shared_ptr<CudaEvent> cuda_;
};

/// The order in which kernels and copies run: two operations on one stream never overlap. On the CPU every operation
/// has ended when its call returns, so there is nothing to wait for; on an accelerator, results may be read by the host
/// only after `synchronize`, or once `is_done`. Memory that an operation uses must stay until then. Copies of a Stream
/// are the same stream.
class Stream {
 public:
  /// One of its own on `device`; `purpose` names it in profilers: compute, pull, push. Throws Error when the device
  /// cannot be used.
  explicit Stream(const Device& device, const char* purpose = "compute");
  /// One that is there already; `cuda` must outlive all copies of this object.
  Stream(const Device& device, CudaStream& cuda) : device_(device), cuda_(std::shared_ptr<void>(), &cuda) {}
  const Device& device() const { return device_; }
  int threads() const { return device_.threads; }
  CudaStream* cuda() const { return cuda_.get(); }  ///< null on the CPU

  void synchronize() const;
  /// Whether everything has ended; never blocks.
  bool is_done() const;
  /// What was put into the stream until now.
  Event record() const;
  /// What is put into the stream from now on runs after the event. The host does not wait.
  void wait_for(const Event& event) const;

 private:
  Device device_;
  std::shared_ptr<CudaStream> cuda_;
};

}  // namespace hat
