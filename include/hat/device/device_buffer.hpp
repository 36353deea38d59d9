#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "hat/device/device.hpp"

namespace hat {

/// Start of every buffer in bytes: a cache line, and the widest vector register.
inline constexpr int64_t kBufferAlignment = 64;

namespace detail {

/// Memory of `device`, aligned to kBufferAlignment. Throws Error naming the size when there is not enough.
void* allocate_bytes(const Device& device, int64_t count, int64_t element_bytes);

struct ReleaseBytes {
  void operator()(void* data) const noexcept;
};

}  // namespace detail

/// `count` elements of memory on a device. Owns it; moves, never copies. Contents start undefined.
template <typename T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Device& device, int64_t count)
      : data_(static_cast<T*>(detail::allocate_bytes(device, count, sizeof(T)))), size_(count) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  std::span<T> span() { return {data_.get(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_.get(), static_cast<size_t>(size_)}; }

  /// Makes room for at least `count` elements; never shrinks. Contents are undefined when it had to grow, which also
  /// ends the life of earlier pointers.
  void grow(const Device& device, int64_t count) {
    if (count > size_) {
      data_.reset();  // before the new allocation, so that both never exist at once
      size_ = 0;
      *this = DeviceBuffer(device, count);
    }
  }

 private:
  std::unique_ptr<T, detail::ReleaseBytes> data_;
  int64_t size_ = 0;
};

/// Copies `count` elements from host memory to the device, in the order of `stream`.
template <typename T>
void copy_to_device(const Stream&, const T* host, T* device, int64_t count) {
  if (count > 0) std::memcpy(device, host, static_cast<size_t>(count) * sizeof(T));
}

/// Copies `count` elements from the device to host memory. They may be read after `stream.synchronize()`.
template <typename T>
void copy_to_host(const Stream&, const T* device, T* host, int64_t count) {
  if (count > 0) std::memcpy(host, device, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace hat
