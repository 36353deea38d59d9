#pragma once
#include <cstdint>

namespace hat {

/// A document, or a piece of one longer than model.max_length: target tokens [begin, begin + length) of it.
struct Sequence {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t length = 0;
  /// Of a range of a longer sequence: tokens of the sequence before it, which its attention sees.
  int64_t earlier = 0;
  bool operator==(const Sequence&) const = default;
};

}  // namespace hat
