#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "hat/comm/messages.hpp"

namespace hat {

/// How late the pushes of one step were, by block, and the versions they were computed on. Of a push that sums several
/// units, its oldest version counts.
class StalenessCount {
 public:
  void add(int64_t block, int64_t late, int64_t base_version) {
    ++pushes_[{block, late}];
    const auto [entry, first] = versions_.try_emplace(block, std::pair(base_version, base_version));
    entry->second.first = std::min(entry->second.first, base_version);
    entry->second.second = std::max(entry->second.second, base_version);
  }

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

 private:
  std::map<std::pair<int64_t, int64_t>, int64_t> pushes_;    // by block and how late
  std::map<int64_t, std::pair<int64_t, int64_t>> versions_;  // oldest and newest, by block
};

}  // namespace hat
