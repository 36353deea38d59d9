#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "hat/device/cuda.hpp"
#include "hat/device/device.hpp"

namespace hat {

/// Start of every buffer in bytes: a cache line, and the widest vector register.
inline constexpr int64_t kBufferAlignment = 64;

namespace detail {

/// Whose memory: what a device computes with, or the host's that it copies from and to.
enum class Memory { of_device, of_host };

/// Aligned to kBufferAlignment. Throws Error naming the size when there is not enough.
void* allocate_bytes(const Device& device, Memory memory, int64_t count, int64_t element_bytes);

/// Knows how it was allocated.
struct ReleaseBytes {
  Device device;
  Memory memory = Memory::of_device;
  void operator()(void* data) const noexcept;
};

/// `count` elements. Owns them; moves, never copies. Contents start undefined.
template <typename T, Memory kMemory>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(const Device& device, int64_t count)
      : data_(static_cast<T*>(allocate_bytes(device, kMemory, count, sizeof(T))), ReleaseBytes{device, kMemory}),
        size_(count) {}
  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
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
  /// ends the life of earlier pointers, and on an accelerator waits for all that may still use them.
  void grow(const Device& device, int64_t count) {
    if (count > size_) {
      data_.reset();  // before the new allocation, so that both never exist at once
      size_ = 0;
      *this = Buffer(device, count);
    }
  }

 private:
  std::unique_ptr<T, ReleaseBytes> data_;
  int64_t size_ = 0;
};

}  // namespace detail

/// Memory that a device computes with: its own.
template <typename T>
using DeviceBuffer = detail::Buffer<T, detail::Memory::of_device>;
/// Memory of the host that a device copies from and to without a detour (page-locked, where that makes a difference).
template <typename T>
using PinnedBuffer = detail::Buffer<T, detail::Memory::of_host>;

namespace detail {
struct Unpin {
  void operator()(std::byte* memory) const noexcept { cuda::unpin(memory); }
};
}  // namespace detail

/// Memory of the host that somebody else owns, made like that of a PinnedBuffer as long as this lives.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(const Device& device, std::span<std::byte> memory) {
    if (device.kind == DeviceKind::cpu || memory.empty()) return;
    if (cuda::pin(device.index, memory.data(), std::ssize(memory))) memory_.reset(memory.data());
  }

 private:
  std::unique_ptr<std::byte, detail::Unpin> memory_;
};

/// Copies `count` elements from host memory to the device, in the order of `stream`. The host's must stay as they are
/// until the stream has come so far.
template <typename T>
void copy_to_device(const Stream& stream, const T* host, T* device, int64_t count) {
  if (count <= 0) return;
  if (stream.cuda() != nullptr) {
    cuda::copy_to_device(*stream.cuda(), host, device, count * static_cast<int64_t>(sizeof(T)));
  } else {
    std::memcpy(device, host, static_cast<size_t>(count) * sizeof(T));
  }
}

/// Copies `count` elements from the device to host memory. They may be read after `stream.synchronize()`.
template <typename T>
void copy_to_host(const Stream& stream, const T* device, T* host, int64_t count) {
  if (count <= 0) return;
  if (stream.cuda() != nullptr) {
    cuda::copy_to_host(*stream.cuda(), device, host, count * static_cast<int64_t>(sizeof(T)));
  } else {
    std::memcpy(host, device, static_cast<size_t>(count) * sizeof(T));
  }
}

}  // namespace hat
