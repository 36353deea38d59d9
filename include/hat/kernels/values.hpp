#pragma once
#include <cstdint>
#include <type_traits>

#include "hat/core/bfloat16.hpp"

namespace hat {

/// What the numbers of an array are stored as.
enum class Element { fp32, bf16 };

inline constexpr int64_t element_bytes(Element element) { return element == Element::fp32 ? 4 : 2; }

/// A pointer to device memory that knows its element type. Moves in elements, as a typed pointer does.
template <typename Void>
class BasicValues {
 public:
  BasicValues() = default;
  BasicValues(Void* data, Element element) : data_(data), element_(element) {}
  template <typename T>
  requires(std::is_same_v<std::remove_const_t<T>, float> || std::is_same_v<std::remove_const_t<T>, bfloat16>)
      BasicValues(T* data)
      : data_(data), element_(std::is_same_v<std::remove_const_t<T>, float> ? Element::fp32 : Element::bf16) {}
  /// Values of a writable array may be read.
  template <typename Other>
  requires(std::is_const_v<Void>&& std::is_same_v<Other, void>) BasicValues(BasicValues<Other> other)
      : data_(other.data()), element_(other.element()) {}

  Void* data() const { return data_; }
  Element element() const { return element_; }
  /// The array as floats; only for one that holds fp32.
  auto* fp32() const { return as<float>(); }
  auto* bf16() const { return as<bfloat16>(); }

  BasicValues operator+(int64_t elements) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    return {static_cast<Byte*>(data_) + elements * element_bytes(element_), element_};
  }

 private:
  template <typename T>
  auto* as() const {
    return static_cast<std::conditional_t<std::is_const_v<Void>, const T, T>*>(data_);
  }
  Void* data_ = nullptr;
  Element element_ = Element::fp32;
};

using Values = BasicValues<void>;
using ConstValues = BasicValues<const void>;

}  // namespace hat
