#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hat/device/device.hpp"

/// What CUDA does for the modules above, without its headers. Linked in from src/device/cuda, or where HAT is built
/// without CUDA from src/device/no_cuda: there no device is visible, and everything else throws Error.
namespace hat::cuda {

/// A device that this process may use (CUDA_VISIBLE_DEVICES).
struct VisibleDevice {
  std::string name;
  std::string id;  ///< the same for all processes of a node that see this device, and for no other device
  bool operator==(const VisibleDevice&) const = default;
};

struct VisibleDevices {
  std::vector<VisibleDevice> devices;
  std::string problem;  ///< why there is none; empty when there is one
};

/// "sm_80, sm_90 and PTX", what kernels were compiled for; empty in a build without CUDA.
std::string built_for();
/// Throws nothing.
VisibleDevices visible_devices();
/// Bytes of a device that nobody has allocated.
int64_t free_bytes(int device);

/// Memory of a device, and of the host where copies from and to any device need no detour. (Even that is allocated by a
/// device, which sets aside some hundred MiB for a process that uses it: hence by the one that is used anyway.) Throw
/// Error.
void* allocate(int device, int64_t bytes);
void* allocate_pinned(int device, int64_t bytes);
void release(int device, void* data) noexcept;
void release_pinned(void* data) noexcept;
/// Makes memory of the host that is there already like that of allocate_pinned. False where the driver will not: copies
/// take their detour then.
bool pin(int device, void* data, int64_t bytes);
void unpin(void* data) noexcept;

std::shared_ptr<CudaStream> make_stream(int device, const char* purpose);
void synchronize(const CudaStream& stream);
bool is_done(const CudaStream& stream);
std::shared_ptr<CudaEvent> record(const CudaStream& stream);
void wait_for(const CudaStream& stream, const CudaEvent& event);
void synchronize(const CudaEvent& event);
bool is_done(const CudaEvent& event);

/// In the order of the stream.
void copy_to_device(const CudaStream& stream, const void* host, void* device, int64_t bytes);
void copy_to_host(const CudaStream& stream, const void* device, void* host, int64_t bytes);

}  // namespace hat::cuda
