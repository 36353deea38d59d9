#include "hat/device/device.hpp"

#include <fmt/format.h>

#include "hat/device/cuda.hpp"

namespace hat {

std::string describe(const Device& device) {
  if (device.kind == DeviceKind::cuda) return fmt::format("cuda device {}", device.index);
  return fmt::format("cpu ({} thread{})", device.threads, device.threads == 1 ? "" : "s");
}

bool Event::is_done() const { return !cuda_ || cuda::is_done(*cuda_); }
void Event::wait() const {
  if (cuda_) cuda::synchronize(*cuda_);
}

Stream::Stream(const Device& device, const char* purpose) : device_(device) {
  if (device.kind == DeviceKind::cuda) cuda_ = cuda::make_stream(device.index, purpose);
}

void Stream::synchronize() const {
  if (cuda_) cuda::synchronize(*cuda_);
}
bool Stream::is_done() const { return !cuda_ || cuda::is_done(*cuda_); }
Event Stream::record() const { return cuda_ ? Event(cuda::record(*cuda_)) : Event(); }
void Stream::wait_for(const Event& event) const {
  if (cuda_ && event.cuda() != nullptr) cuda::wait_for(*cuda_, *event.cuda());
}

}  // namespace hat
