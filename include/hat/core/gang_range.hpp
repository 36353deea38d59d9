#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hat {

/// What one member of a gang computes of the sequence that the gang has. Members are numbered as their ranges lie in
/// it.
struct GangRange {
  std::vector<int64_t> bounds;  ///< (members + 1) ascending from 0: member i has tokens [bounds[i], bounds[i + 1])
  int64_t member = 0;

  int64_t members() const { return static_cast<int64_t>(bounds.size()) - 1; }
  int64_t begin() const { return bounds[static_cast<size_t>(member)]; }
  int64_t end() const { return bounds[static_cast<size_t>(member) + 1]; }
  int64_t tokens() const { return end() - begin(); }
  int64_t tokens_of(int64_t other) const {
    return bounds[static_cast<size_t>(other) + 1] - bounds[static_cast<size_t>(other)];
  }
  bool operator==(const GangRange&) const = default;
};

}  // namespace hat
