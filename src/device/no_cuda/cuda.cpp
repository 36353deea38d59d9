#include "hat/device/cuda.hpp"

#include "hat/core/error.hpp"

// HAT without CUDA: nothing asks for more than the devices, of which there are none.
namespace hat {

class CudaStream {};
class CudaEvent {};

namespace cuda {

namespace {
[[noreturn]] void refuse() { throw Error("this build has no CUDA"); }
}  // namespace

std::string built_for() { return ""; }
VisibleDevices visible_devices() { return {.devices = {}, .problem = "this build has no CUDA"}; }
int64_t free_bytes(int /*device*/) { refuse(); }

void* allocate(int /*device*/, int64_t /*bytes*/) { refuse(); }
void* allocate_pinned(int /*device*/, int64_t /*bytes*/) { refuse(); }
void release(int /*device*/, void* /*data*/) noexcept {}
void release_pinned(void* /*data*/) noexcept {}
bool pin(int /*device*/, void* /*data*/, int64_t /*bytes*/) { refuse(); }
void unpin(void* /*data*/) noexcept {}

std::shared_ptr<CudaStream> make_stream(int /*device*/, const char* /*purpose*/) { refuse(); }
void synchronize(const CudaStream& /*stream*/) { refuse(); }
bool is_done(const CudaStream& /*stream*/) { refuse(); }
std::shared_ptr<CudaEvent> record(const CudaStream& /*stream*/) { refuse(); }
void wait_for(const CudaStream& /*stream*/, const CudaEvent& /*event*/) { refuse(); }
void synchronize(const CudaEvent& /*event*/) { refuse(); }
bool is_done(const CudaEvent& /*event*/) { refuse(); }

void copy_to_device(const CudaStream& /*stream*/, const void* /*host*/, void* /*device*/, int64_t /*bytes*/) {
  refuse();
}
void copy_to_host(const CudaStream& /*stream*/, const void* /*device*/, void* /*host*/, int64_t /*bytes*/) { refuse(); }

}  // namespace cuda

}  // namespace hat
