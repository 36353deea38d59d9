#include "hat/commands/longtail_figures.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "hat/commands/policy_simulation.hpp"
#include "hat/metrics/account.hpp"
#include "hat/model/charged_cost.hpp"
#include "hat/model/shard_plan.hpp"

namespace hat {

namespace {

double start_s(const RunResult& result) {
  return result.evaluations.empty() ? 0.0 : result.evaluations.front().seconds;
}

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// Depth of the lowest barrier block, where barriers wait longer than other blocks do.
std::optional<double> lowest_barrier(const Deck& deck) {
  if (deck.staleness == 0) return std::nullopt;
  const std::vector<bool> is_barrier =
      barrier_blocks(make_layout(deck.model), ChargedCost(deck).blocks(), deck.barriers);
  const auto lowest = std::find(is_barrier.begin(), is_barrier.end(), true);
  if (lowest == is_barrier.end()) return std::nullopt;
  return depth_of(deck, static_cast<size_t>(lowest - is_barrier.begin()));
}

StepCosts sorted(StepCosts steps) {
  for (std::vector<double>& costs : steps) std::sort(costs.begin(), costs.end(), std::greater<>());
  return steps;
}

/// Seconds of synchronous steps with shares fixed before they begin.
double fixed_shares_seconds(Dispatch dispatch, const StepCosts& costs, const std::vector<double>& speeds) {
  switch (dispatch) {
    case Dispatch::sorted:
      return static_sync_seconds(sorted(costs), speeds);
    case Dispatch::balanced:
      return balanced_sync_seconds(costs, speeds);
    case Dispatch::static_:
    case Dispatch::on_demand:
      break;
  }
  return static_sync_seconds(costs, speeds);
}

void add_shares(const RunResult& result, LongtailFigures& figures) {
  AccountReading all;
  for (const WorkerSummary& worker : result.workers) {
    add(all, worker.account);
    if (worker.node_joules >= 0) figures.counted_joules = figures.counted_joules.value_or(0.0) + worker.node_joules;
  }
  for (const double seconds : all.seconds) figures.activity_shares.push_back(seconds / wall_seconds(all));
  figures.communication_share = communication_share(all);
}

void add_staleness(const RunResult& result, LongtailFigures& figures) {
  double pushes = 0;
  double late = 0;
  for (size_t s = 0; s < result.staleness_counts.size(); ++s) {
    const auto count = static_cast<double>(result.staleness_counts[s]);
    pushes += count;
    late += count * static_cast<double>(s);
    if (count > 0) figures.staleness_most = static_cast<int64_t>(s);
  }
  if (pushes > 0) figures.staleness_mean = late / pushes;
}

}  // namespace

StepCosts charged_flop(const Deck& deck, DataOrder& order, int64_t steps) {
  const ChargedCost cost(deck);
  StepCosts costs(static_cast<size_t>(steps));
  for (int64_t step = 0; step < steps; ++step) {
    for (const Sequence& sequence : order.step(step).sequences) {
      costs[static_cast<size_t>(step)].push_back(cost.flop(sequence.length));
    }
  }
  return costs;
}

std::vector<double> device_speeds(const Deck& deck, int workers) {
  const EmulatedDeviceConfig& device = deck.emulation.device;
  std::vector<double> speeds;
  for (int worker = 0; worker < workers; ++worker) {
    double speed = device.on() ? device.speed_of(worker) : 1.0;
    if (device.is_disturbed(worker)) {
      if (device.slow_every_s > 0) {
        const double slow = device.slow_for_s / device.slow_every_s;
        speed *= 1.0 - slow + slow / device.slow_factor;
      }
      if (device.stall_every_s > 0) speed *= device.stall_every_s / (device.stall_every_s + device.stall_for_s);
    }
    speeds.push_back(speed);
  }
  return speeds;
}

double depth_of(const Deck& deck, size_t block) {
  const std::vector<BlockFlop> blocks = ChargedCost(deck).blocks();
  double before = 0;
  double all = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    all += blocks[b].per_token;
    if (b < block) before += blocks[b].per_token;
  }
  return before / all;
}

std::optional<double> ideal_utilization(const Deck& deck, const StepCosts& costs, int workers) {
  const std::vector<double> speeds = device_speeds(deck, workers);
  const bool on_demand = deck.dispatch == Dispatch::on_demand;
  if (deck.staleness == kUnbounded || (!on_demand && deck.staleness > 0)) return std::nullopt;
  double seconds = on_demand ? on_demand_seconds(costs, speeds, deck.staleness, lowest_barrier(deck))
                             : fixed_shares_seconds(deck.dispatch, costs, speeds);
  const bool one_each = costs.front().size() == speeds.size();
  if (one_each && deck.staleness == 0) seconds *= mean_slowest_factor(workers, deck.emulation.device.jitter);
  return total_cost(costs) / (sum_of(speeds) * seconds);
}

std::vector<double> smoothed_loss(const RunResult& result, int64_t window) {
  std::vector<double> losses;
  double nats = 0;
  double tokens = 0;
  for (size_t i = 0; i < result.steps.size(); ++i) {
    nats += result.steps[i].nats;
    tokens += static_cast<double>(result.steps[i].tokens);
    if (i >= static_cast<size_t>(window)) {
      const RunResult::StepPoint& left = result.steps[i - static_cast<size_t>(window)];
      nats -= left.nats;
      tokens -= static_cast<double>(left.tokens);
    }
    losses.push_back(nats / tokens);
  }
  return losses;
}

std::optional<double> seconds_to_loss(const RunResult& result, int64_t window, double loss) {
  const std::vector<double> losses = smoothed_loss(result, window);
  for (size_t i = 0; i < losses.size(); ++i) {
    if (!(losses[i] <= loss)) continue;
    const double now = result.steps[i].seconds - start_s(result);
    if (i == 0) return now;
    const double before = result.steps[i - 1].seconds - start_s(result);
    return before + (now - before) * (losses[i - 1] - loss) / (losses[i - 1] - losses[i]);
  }
  return std::nullopt;
}

LongtailFigures figures_of(const Deck& deck, const StepCosts& costs, const RunResult& result, int64_t window) {
  LongtailFigures figures;
  const auto workers = static_cast<int>(result.workers.size());
  const EmulatedDeviceConfig& device = deck.emulation.device;
  figures.seconds = result.steps.back().seconds - start_s(result);
  figures.tokens = result.tokens;
  figures.charged_tokens = static_cast<int64_t>(static_cast<double>(result.tokens) * deck.emulation.length_scale);
  const double speed = sum_of(device_speeds(deck, workers));
  if (device.on()) figures.utilization = total_cost(costs) / (speed * figures.seconds);
  figures.ideal = ideal_utilization(deck, costs, workers);
  figures.loss = smoothed_loss(result, window).back();
  figures.validation_loss = result.evaluations.back().loss;
  add_shares(result, figures);
  add_staleness(result, figures);
  int64_t bytes = 0;
  double busy_s = 0;
  for (const WorkerSummary& worker : result.workers) {
    bytes += worker.pulled_bytes + worker.pushed_bytes;
    busy_s += worker.emulated_s;
    figures.lag_mean_s += worker.mean_lag_s / static_cast<double>(workers);
    figures.lag_worst_s = std::max(figures.lag_worst_s, worker.worst_lag_s);
  }
  figures.bytes_per_token = static_cast<double>(bytes) / static_cast<double>(result.tokens);
  if (device.on() && device.busy_watts > 0) {
    const double waiting_s = static_cast<double>(workers) * figures.seconds - busy_s;
    figures.joules = device.busy_watts * busy_s + device.idle_watts * waiting_s;
  }
  return figures;
}

}  // namespace hat
