#pragma once
#include <cstdint>
#include <vector>

namespace hat {

/// Documents packed one behind the other, no padding. Document i occupies positions
/// [offsets[i], offsets[i + 1]); attention never crosses an offset; positions count from 0 in each document.
struct PackedBatch {
  std::vector<int32_t> inputs;   // (T)
  std::vector<int32_t> targets;  // (T); a negative target is not counted
  std::vector<int32_t> offsets;  // (documents + 1), offsets.back() == T
};

}  // namespace hat
