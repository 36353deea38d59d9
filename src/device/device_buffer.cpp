#include "hat/device/device_buffer.hpp"

#include <cstdlib>

#include "hat/core/error.hpp"

namespace hat::detail {

void* allocate_bytes(const Device& device, Memory memory, int64_t count, int64_t element_bytes) {
  int64_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(count, element_bytes, &bytes) || bytes > INT64_MAX - kBufferAlignment) {
    throw Error(fmt::format("cannot allocate {} elements of {} bytes", count, element_bytes));
  }
  if (bytes == 0) return nullptr;
  if (device.kind == DeviceKind::cuda) {
    return memory == Memory::of_device ? cuda::allocate(device.index, bytes)
                                       : cuda::allocate_pinned(device.index, bytes);
  }
  // aligned_alloc wants a multiple of the alignment.
  const int64_t rounded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  void* data = std::aligned_alloc(kBufferAlignment, static_cast<size_t>(rounded));
  if (data == nullptr) throw Error(fmt::format("out of memory: cannot allocate {} bytes", rounded));
  return data;
}

void ReleaseBytes::operator()(void* data) const noexcept {
  if (device.kind == DeviceKind::cpu) {
    std::free(data);
  } else if (memory == Memory::of_device) {
    cuda::release(device.index, data);
  } else {
    cuda::release_pinned(data);
  }
}

}  // namespace hat::detail
