#include "hat/commands/policy_simulation.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "hat/core/random.hpp"

namespace hat {

namespace {

std::vector<double> longest_first(std::vector<double> costs) {
  std::sort(costs.begin(), costs.end(), std::greater<>());
  return costs;
}

double slowest_of(const std::vector<double>& loads, const std::vector<double>& speeds) {
  double seconds = 0;
  for (size_t worker = 0; worker < loads.size(); ++worker) seconds = std::max(seconds, loads[worker] / speeds[worker]);
  return seconds;
}

}  // namespace

double total_cost(const StepCosts& steps) {
  double sum = 0;
  for (const std::vector<double>& costs : steps) sum = std::accumulate(costs.begin(), costs.end(), sum);
  return sum;
}

double static_sync_seconds(const StepCosts& steps, const std::vector<double>& speeds) {
  double seconds = 0;
  for (const std::vector<double>& costs : steps) {
    std::vector<double> loads(speeds.size(), 0.0);
    for (size_t i = 0; i < costs.size(); ++i) loads[i % loads.size()] += costs[i];
    seconds += slowest_of(loads, speeds);
  }
  return seconds;
}

double balanced_sync_seconds(const StepCosts& steps, const std::vector<double>& speeds) {
  double seconds = 0;
  for (const std::vector<double>& costs : steps) {
    std::vector<double> loads(speeds.size(), 0.0);
    for (const double cost : longest_first(costs)) *std::min_element(loads.begin(), loads.end()) += cost;
    seconds += slowest_of(loads, speeds);
  }
  return seconds;
}

double on_demand_seconds(const StepCosts& steps, const std::vector<double>& speeds, int64_t staleness,
                         std::optional<double> barrier_depth) {
  constexpr double kForward = 1.0 / 3.0;
  using Free = std::pair<double, size_t>;  // since when, worker
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (size_t worker = 0; worker < speeds.size(); ++worker) free.emplace(0.0, worker);
  std::vector<double> done;       // by step: everything of it and the steps before
  double barrier_block_done = 0;  // the backward passes of the step before have left the barrier block
  const double depth = barrier_depth.value_or(0.0);
  for (const std::vector<double>& costs : steps) {
    const auto before = static_cast<int64_t>(done.size()) - 1 - staleness;
    const double ready = before >= 0 ? done[static_cast<size_t>(before)] : 0.0;
    double end = done.empty() ? 0.0 : done.back();
    double block_done = 0;
    for (const double cost : longest_first(costs)) {
      const auto [since, worker] = free.top();
      free.pop();
      const double seconds = cost / speeds[worker];
      const double start = std::max(since, ready);
      const double first_use = start + kForward * depth * seconds;
      const double wait = barrier_depth ? std::max(0.0, barrier_block_done - first_use) : 0.0;
      const double unit_end = start + wait + seconds;
      free.emplace(unit_end, worker);
      end = std::max(end, unit_end);
      block_done = std::max(block_done, unit_end - (1.0 - kForward) * depth * seconds);
    }
    done.push_back(end);
    barrier_block_done = block_done;
  }
  return done.empty() ? 0.0 : done.back();
}

double mean_slowest_factor(int workers, double jitter) {
  constexpr uint64_t kSteps = 20000;
  const double sigma = std::sqrt(std::log1p(jitter * jitter));
  double sum = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    double slowest = 0;
    for (uint64_t worker = 0; worker < static_cast<uint64_t>(workers); ++worker) {
      slowest = std::max(slowest, std::exp(sigma * random_normal(1, worker, step) - sigma * sigma / 2));
    }
    sum += slowest;
  }
  return sum / static_cast<double>(kSteps);
}

}  // namespace hat
