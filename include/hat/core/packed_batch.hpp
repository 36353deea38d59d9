#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "hat/core/gang_range.hpp"

namespace hat {

/// Documents packed one behind the other, no padding. Document i occupies positions
/// [offsets[i], offsets[i + 1]); attention never crosses an offset; positions count from 0 in each document.
/// Or one range of one document, of which a gang computes the others: then positions count from the range's begin.
struct PackedBatch {
  std::vector<int32_t> inputs;       // (T)
  std::vector<int32_t> targets;      // (T); a negative target is not counted
  std::vector<int32_t> offsets;      // (documents + 1), offsets.back() == T; {0, T} of a range
  std::optional<GangRange> range{};  // of T tokens
};

}  // namespace hat
