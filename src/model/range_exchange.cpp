#include "hat/model/range_exchange.hpp"

#include <cstring>
#include <span>

#include "hat/core/bfloat16.hpp"

namespace hat {

namespace {
template <typename T>
std::span<T> span_of(std::byte* data, int64_t count) {
  return {reinterpret_cast<T*>(data), static_cast<size_t>(count)};
}
}  // namespace

void copy_values(ConstValues from, int64_t count, Element to, std::byte* data) {
  if (from.element() == to) {
    std::memcpy(data, from.data(), static_cast<size_t>(count * element_bytes(to)));
  } else if (to == Element::bf16) {
    to_bfloat16({from.fp32(), static_cast<size_t>(count)}, span_of<bfloat16>(data, count));
  } else {
    to_float({from.bf16(), static_cast<size_t>(count)}, span_of<float>(data, count));
  }
}

}  // namespace hat
