#include "hat/comm/mailbox.hpp"

#include <cstring>

#include "hat/core/error.hpp"

namespace hat {

void MessageWriter::append(const void* data, size_t size) {
  const size_t end = bytes_.size();
  bytes_.resize(end + size);
  if (size > 0) std::memcpy(bytes_.data() + end, data, size);
}

size_t MessageReader::take_count(size_t element_bytes) {
  int64_t count = 0;
  (*this)(count);
  if (count < 0 || static_cast<size_t>(count) > bytes_.size() / element_bytes) throw Error("a message is cut short");
  return static_cast<size_t>(count);
}

void MessageReader::take(void* data, size_t size) {
  if (size > bytes_.size()) throw Error("a message is cut short");
  if (size > 0) std::memcpy(data, bytes_.data(), size);
  bytes_ = bytes_.subspan(size);
}

}  // namespace hat
