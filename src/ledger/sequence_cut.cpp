#include "hat/ledger/sequence_cut.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hat {

namespace {

/// The n of which n + area_weight n^2 is `cost`; in a form that loses no digits when the weight is small.
double length_that_costs(double cost, double area_weight) {
  return 2.0 * cost / (1.0 + std::sqrt(1.0 + 4.0 * area_weight * cost));
}

}  // namespace

UnitSize size_of_range(int64_t begin, int64_t end) {
  const auto b = static_cast<double>(begin);
  const auto e = static_cast<double>(end);
  return {.tokens = e - b, .area = (e - b) * (e + b)};
}

std::vector<int64_t> equal_cost_bounds(int64_t length, double area_weight, std::span<const double> speeds) {
  const int64_t ranges = std::min(std::ssize(speeds), length);
  speeds = speeds.first(static_cast<size_t>(ranges));
  const auto n = static_cast<double>(length);
  const double cost = n + area_weight * n * n;
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<int64_t> bounds{0};
  double speed = 0;
  for (int64_t i = 1; i < ranges; ++i) {
    speed += speeds[static_cast<size_t>(i - 1)];
    const double bound = length_that_costs(cost * speed / all, area_weight);
    bounds.push_back(std::clamp<int64_t>(std::llround(bound), bounds.back() + 1, length - (ranges - i)));
  }
  bounds.push_back(length);
  return bounds;
}

}  // namespace hat
