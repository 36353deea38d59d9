#include "hat/ledger/partition.hpp"

#include <algorithm>
#include <queue>
#include <utility>

namespace hat {

namespace {

struct Set {
  double sum = 0;
  std::vector<size_t> items;
};

struct Split {
  std::vector<Set> sets;  // heaviest first; those behind the last one are empty
  double spread = 0;      // between the heaviest and the lightest of all sets
  size_t number = 0;      // tells equal spreads apart, always the same way
};

struct NarrowerSpread {
  bool operator()(const Split& a, const Split& b) const {
    return a.spread != b.spread ? a.spread < b.spread : a.number > b.number;
  }
};

/// Set i of `a` goes together with set parts - 1 - i of `b`.
Split join(Split a, Split b, size_t parts) {
  for (size_t light = b.sets.size(); light-- > 0;) {
    const size_t heavy = parts - 1 - light;
    if (heavy >= a.sets.size()) {
      a.sets.push_back(std::move(b.sets[light]));
      continue;
    }
    Set& set = a.sets[heavy];
    set.sum += b.sets[light].sum;
    set.items.insert(set.items.end(), b.sets[light].items.begin(), b.sets[light].items.end());
  }
  std::stable_sort(a.sets.begin(), a.sets.end(), [](const Set& x, const Set& y) { return x.sum > y.sum; });
  a.spread = a.sets.front().sum - (a.sets.size() == parts ? a.sets.back().sum : 0.0);
  return a;
}

}  // namespace

std::vector<std::vector<size_t>> balanced_partition(std::span<const double> costs, size_t parts) {
  std::priority_queue<Split, std::vector<Split>, NarrowerSpread> splits;
  for (size_t i = 0; i < costs.size(); ++i) {
    const double spread = parts == 1 ? 0.0 : costs[i];
    splits.push({.sets = {{.sum = costs[i], .items = {i}}}, .spread = spread, .number = i});
  }
  while (splits.size() > 1) {
    Split widest = splits.top();
    splits.pop();
    Split second = splits.top();
    splits.pop();
    splits.push(join(std::move(widest), std::move(second), parts));
  }
  std::vector<std::vector<size_t>> result(parts);
  if (splits.empty()) return result;
  const std::vector<Set>& sets = splits.top().sets;
  for (size_t set = 0; set < sets.size(); ++set) result[set] = sets[set].items;
  return result;
}

}  // namespace hat
