#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "hat/comm/messages.hpp"

namespace hat {

/// What one server tells of the pushes of a step: how late they were, by block, the versions they were computed on, and
/// which were over the staleness limit. Of a push that sums several units, its oldest version counts.
class StalenessCount {
 public:
  void add(int64_t block, int64_t late, int64_t base_version) {
    ++pushes_[{block, late}];
    const auto [entry, first] = versions_.try_emplace(block, std::pair(base_version, base_version));
    entry->second.first = std::min(entry->second.first, base_version);
    entry->second.second = std::max(entry->second.second, base_version);
  }
  void add_over_limit(int64_t block) {
    const auto number = static_cast<size_t>(block);
    if (over_limit_.size() <= number) over_limit_.resize(number + 1, 0);
    ++over_limit_[number];
  }

  StepComplete message(int64_t server, int64_t step) const {
    return {.server = server,
            .step = step,
            .block_staleness = staleness(),
            .base_versions = versions(),
            .pushes_over_limit = over_limit_};
  }

 private:
  std::vector<BlockStaleness> staleness() const {
    std::vector<BlockStaleness> result;
    for (const auto& [key, pushes] : pushes_) {
      result.push_back({.block = key.first, .late = key.second, .pushes = pushes});
    }
    return result;
  }
  std::vector<BaseVersions> versions() const {
    std::vector<BaseVersions> result;
    for (const auto& [block, range] : versions_) {
      result.push_back({.block = block, .oldest = range.first, .newest = range.second});
    }
    return result;
  }

  std::map<std::pair<int64_t, int64_t>, int64_t> pushes_;    // by block and how late
  std::map<int64_t, std::pair<int64_t, int64_t>> versions_;  // oldest and newest, by block
  std::vector<int64_t> over_limit_;                          // by block
};

}  // namespace hat
