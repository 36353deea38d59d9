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
  std::vector<Set> sets;  // heaviest first
  size_t number = 0;      // tells equal spreads apart, always the same way
  double spread() const { return sets.front().sum - sets.back().sum; }
};

struct NarrowerSpread {
  bool operator()(const Split& a, const Split& b) const {
    return a.spread() != b.spread() ? a.spread() < b.spread() : a.number > b.number;
  }
};

Split join(Split a, Split b) {
  for (size_t i = 0; i < a.sets.size(); ++i) {
    Set& light = b.sets[b.sets.size() - 1 - i];
    a.sets[i].sum += light.sum;
    a.sets[i].items.insert(a.sets[i].items.end(), light.items.begin(), light.items.end());
  }
  std::stable_sort(a.sets.begin(), a.sets.end(), [](const Set& x, const Set& y) { return x.sum > y.sum; });
  return a;
}

}  // namespace

std::vector<std::vector<size_t>> balanced_partition(std::span<const double> costs, size_t parts) {
  std::priority_queue<Split, std::vector<Split>, NarrowerSpread> splits;
  for (size_t i = 0; i < costs.size(); ++i) {
    Split one{.sets = std::vector<Set>(parts), .number = i};
    one.sets.front() = {.sum = costs[i], .items = {i}};
    splits.push(std::move(one));
  }
  while (splits.size() > 1) {
    Split widest = splits.top();
    splits.pop();
    Split second = splits.top();
    splits.pop();
    splits.push(join(std::move(widest), std::move(second)));
  }
  std::vector<std::vector<size_t>> result(parts);
  if (splits.empty()) return result;
  for (size_t set = 0; set < parts; ++set) result[set] = splits.top().sets[set].items;
  return result;
}

}  // namespace hat
