#pragma once
#include <cstdint>
#include <optional>

#include "hat/core/gang_range.hpp"

namespace hat {

/// What memory for a batch is made for.
struct BatchSize {
  int64_t tokens = 0;
  int64_t longest = 0;                  ///< of its documents
  std::optional<GangRange> range = {};  ///< of one document; then its tokens, and its end
  static BatchSize of(const GangRange& range) {
    return {.tokens = range.tokens(), .longest = range.end(), .range = range};
  }
};

}  // namespace hat
