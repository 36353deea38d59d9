#include "hat/ledger/gang_planner.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "hat/ledger/sequence_cut.hpp"

namespace hat {

namespace {
constexpr double kLongerThan[] = {1.5, 1.0, 0.75, 0.5, 0.35, 0.25, 0.15};
constexpr double kRange[] = {1.0, 0.75, 0.5, 0.35, 0.25, 0.18};
constexpr double kMostOfStep = 0.25;  // that a check of links may cost it
constexpr double kLeastGain = 0.005;  // of the time until a step's end, for which it is worth splitting at all

/// When workers that are free at `free_at` and do `speeds` of work a second have done `work` if none of them idles.
double common_end(std::vector<std::pair<double, double>> free_at_and_speed, double work) {
  std::ranges::sort(free_at_and_speed);
  double end = 0;
  double speed = 0;
  for (const auto& [at, own_speed] : free_at_and_speed) {
    work -= (at - end) * speed;
    if (work <= 0) return at + work / speed;
    end = at;
    speed += own_speed;
  }
  return end + work / speed;
}
}  // namespace

const GangPlanner::Rule GangPlanner::kNotSplit{.longer_than = 0, .range = 1, .most_workers = 1};

double GangPlanner::speed(int64_t worker) const {
  const UnitSize full{.tokens = static_cast<double>(options_.unit_tokens), .area = 0};
  return costs_.cost(full) / costs_.seconds(worker, full);
}

/// How long after the mean end of a step its last sequence may end without holding up the next steps: without a barrier
/// the next S can be computed meanwhile. Half of that, since steps differ.
double GangPlanner::slack(const Load& load) const {
  return options_.before_barrier < 1 ? 0 : 0.5 * static_cast<double>(load.staleness) * load.seconds;
}

bool GangPlanner::on_one_node(std::span<const int64_t> workers) const {
  const std::vector<int>& nodes = options_.gang.node_of_worker;
  if (nodes.empty()) return true;
  const auto node_of = [&](int64_t worker) { return nodes[static_cast<size_t>(worker)]; };
  return std::ranges::all_of(workers, [&](int64_t worker) { return node_of(worker) == node_of(workers.front()); });
}

double GangPlanner::transfer_seconds(std::span<const int64_t> workers, std::span<const int64_t> lengths) const {
  // Forward every range goes to each later one, backward its gradients come back: what the busiest link carries.
  double forward = 0;
  double backward = 0;
  double earlier = 0;
  for (size_t member = 0; member < lengths.size(); ++member) {
    const auto length = static_cast<double>(lengths[member]);
    const double to_others = length * static_cast<double>(lengths.size() - 1 - member);
    const double most = std::max(earlier, to_others);
    forward = std::max(forward, most * options_.gang.forward_bytes);
    backward = std::max(backward, most * options_.gang.backward_bytes);
    earlier += length;
  }
  const LinkSpeed& link = on_one_node(workers) ? options_.gang.links.inside : options_.gang.links.between;
  return (forward + backward) / link.bytes_per_s;
}

double GangPlanner::latency_seconds(std::span<const int64_t> workers) const {
  const LinkSpeed& link = on_one_node(workers) ? options_.gang.links.inside : options_.gang.links.between;
  return 2 * static_cast<double>(options_.gang.layers) * link.latency_s;
}

double GangPlanner::exchange_seconds(std::span<const int64_t> workers, std::span<const int64_t> lengths) const {
  if (!costs_.knows_seconds()) return 0;
  const Exposed& exposed = exposed_[kind(workers)];
  return exposed.transfer * transfer_seconds(workers, lengths) + exposed.latency * latency_seconds(workers);
}

/// Normalized least mean squares (Widrow and Hoff 1960): each share is corrected as much as it had part in the error.
void GangPlanner::observe(const PlannedGang& gang, double seconds, double compute_s) {
  // Weight of the newest gang; the first ones count as much as all before. Checks are rare, and short.
  const double newest = gang.reason == GangReason::link_check ? 0.5 : 0.2;
  constexpr double kLeast = 1e-4;  // a link that was measured on a busy node
  constexpr double kMost = 10;
  const double transfer = transfer_seconds(gang.workers, gang.lengths);
  const double latency = latency_seconds(gang.workers);
  const double squares = transfer * transfer + latency * latency;
  if (squares > 0) {
    Exposed& exposed = exposed_[kind(gang.workers)];
    const double waited = std::clamp(seconds - compute_s, 0.0, kMost * (transfer + latency));
    const double error = waited - (exposed.transfer * transfer + exposed.latency * latency);
    const double part = std::max(newest, 1 / static_cast<double>(++exposed.gangs + 1)) * error / squares;
    exposed.transfer = std::clamp(exposed.transfer + part * transfer, kLeast, kMost);
    exposed.latency = std::clamp(exposed.latency + part * latency, kLeast, kMost);
  }
  if (!gang.in_seconds || seconds <= 0) return;
  error_sum_ += std::abs(gang.seconds - seconds) / seconds;
  ++observed_;
}

double GangPlanner::relative_error() const {
  return observed_ == 0 ? std::numeric_limits<double>::quiet_NaN() : error_sum_ / static_cast<double>(observed_);
}

/// The workers that can begin together earliest; of equals, those that share nodes.
std::vector<int64_t> GangPlanner::choose(const std::vector<double>& free_at, int64_t count) const {
  std::vector<double> times = free_at;
  const auto last = times.begin() + (count - 1);
  std::ranges::nth_element(times, last);
  const double begin = *last;
  std::vector<int64_t> free;
  for (int64_t worker = 0; worker < std::ssize(free_at); ++worker) {
    if (free_at[static_cast<size_t>(worker)] <= begin) free.push_back(worker);
  }
  const std::vector<int>& nodes = options_.gang.node_of_worker;
  if (!nodes.empty()) {
    const auto node_of = [&](int64_t worker) { return nodes[static_cast<size_t>(worker)]; };
    std::map<int, int64_t> on_node;
    for (const int64_t worker : free) ++on_node[node_of(worker)];
    std::ranges::sort(free, std::less<>{}, [&](int64_t worker) {
      return std::tuple(-on_node.at(node_of(worker)), node_of(worker), worker);
    });
  }
  free.resize(static_cast<size_t>(count));
  return free;
}

/// No worker can hold it, nor a longer range than the least gang has.
bool GangPlanner::must_split(const Sequence& sequence) const {
  return options_.gang.least_gang > 0 && sequence.length > options_.gang.unsplit_tokens;
}

PlannedGang GangPlanner::form(const Sequence& sequence, std::vector<int64_t> workers, MessageCost messages) const {
  PlannedGang gang{.workers = std::move(workers)};
  std::vector<double> speeds;
  for (const int64_t worker : gang.workers) speeds.push_back(must_split(sequence) ? 1.0 : speed(worker));
  const std::vector<int64_t> bounds = equal_cost_bounds(sequence.length, options_.area_weight, speeds);
  for (size_t member = 0; member + 1 < bounds.size(); ++member) {
    const UnitSize size = size_of_range(bounds[member], bounds[member + 1]);
    gang.seconds = std::max(gang.seconds, costs_.seconds(gang.workers[member], size));
    gang.lengths.push_back(bounds[member + 1] - bounds[member]);
  }
  if (messages == MessageCost::predicted) gang.exchange_s = exchange_seconds(gang.workers, gang.lengths);
  gang.seconds += gang.exchange_s;
  gang.in_seconds = costs_.knows_seconds();
  return gang;
}

GangPlanner::Outcome GangPlanner::simulate(std::span<const Sequence> sequences, std::vector<double> free_at,
                                           const Load& load, const Rule& rule) const {
  Outcome outcome;
  const double late = slack(load);
  const auto ends = [&](double end) { outcome.score = std::max(outcome.score, end - late); };
  std::vector<size_t> single;
  for (size_t place = 0; place < sequences.size(); ++place) {
    const Sequence& sequence = sequences[place];
    const double alone = costs_.cost(size_of(sequence)) / load.mean_speed;
    const int64_t most = std::min({rule.most_workers, static_cast<int64_t>(free_at.size()), sequence.length});
    const bool must = must_split(sequence);
    if (!must && (alone <= rule.longer_than * load.seconds || most < 2)) {
      single.push_back(place);
      continue;
    }
    const double ranges = std::ceil(alone / (rule.range * load.seconds));
    int64_t count = ranges < static_cast<double>(most) ? std::max<int64_t>(2, static_cast<int64_t>(ranges)) : most;
    if (must) count = std::max(count, options_.gang.least_gang);
    PlannedGang gang = form(sequence, choose(free_at, count), load.messages);
    gang.place = place;
    if (must) gang.reason = GangReason::memory;
    double begin = 0;
    for (const int64_t worker : gang.workers) begin = std::max(begin, free_at[static_cast<size_t>(worker)]);
    for (const int64_t worker : gang.workers) free_at[static_cast<size_t>(worker)] = begin + gang.seconds;
    ends(begin + gang.seconds);
    outcome.gangs.push_back(std::move(gang));
  }
  using Free = std::pair<double, int64_t>;  // since when, worker
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (int64_t worker = 0; worker < std::ssize(free_at); ++worker) {
    free.emplace(free_at[static_cast<size_t>(worker)], worker);
  }
  for (const size_t place : single) {
    const auto [since, worker] = free.top();
    free.pop();
    const double seconds = costs_.seconds(worker, size_of(sequences[place]));
    free_at[static_cast<size_t>(worker)] = since + seconds;
    free.emplace(since + seconds, worker);
    ends(since + seconds);
  }
  double lost = -load.work;  // what workers wait for each other, too
  for (size_t worker = 0; worker < free_at.size(); ++worker) {
    lost += (free_at[worker] - load.free_at[worker]) * load.speeds[worker];
  }
  outcome.busy_until = load.common_end + lost / load.speed;
  outcome.score = std::max(outcome.score, outcome.busy_until);
  return outcome;
}

int64_t GangPlanner::most_workers(const Load& load) const {
  return std::min(options_.gang.max_workers, std::ssize(load.free_at));
}

GangPlanner::Load GangPlanner::load_of(std::span<const Sequence> sequences, const std::vector<double>& free_at,
                                       int64_t staleness) const {
  Load load{.free_at = free_at, .staleness = staleness};
  for (const Sequence& sequence : sequences) load.work += costs_.cost(size_of(sequence));
  std::vector<std::pair<double, double>> free_at_and_speed;
  for (int64_t worker = 0; worker < std::ssize(free_at); ++worker) {
    load.speeds.push_back(speed(worker));
    load.speed += load.speeds.back();
    free_at_and_speed.emplace_back(free_at[static_cast<size_t>(worker)], load.speeds.back());
  }
  load.mean_speed = load.speed / static_cast<double>(free_at.size());
  load.seconds = load.work / load.speed;
  load.common_end = common_end(std::move(free_at_and_speed), load.work);
  return load;
}

/// Of all rules the one whose step ends earliest: `unsplit` is that of not splitting.
GangPlanner::Outcome GangPlanner::earliest(std::span<const Sequence> sequences, const Load& load,
                                           Outcome unsplit) const {
  const int64_t most = most_workers(load);
  const double begin = std::ranges::min(load.free_at);
  Outcome best = std::move(unsplit);
  double least = begin + (best.score - begin) * (1 - kLeastGain);
  const double longest = costs_.cost(size_of(sequences.front())) / load.mean_speed;
  for (const int64_t most_workers : {most, (most + 1) / 2}) {
    for (const double longer_than : kLongerThan) {
      if (longest <= longer_than * load.seconds) continue;
      for (const double range : kRange) {
        Outcome outcome = simulate(sequences, load.free_at, load,
                                   {.longer_than = longer_than, .range = range, .most_workers = most_workers});
        const bool better = outcome.score < least || (outcome.score == least && outcome.busy_until < best.busy_until);
        if (!better) continue;
        least = outcome.score;
        best = std::move(outcome);
      }
    }
  }
  return best;
}

std::vector<PlannedGang> GangPlanner::plan(std::span<const Sequence> sequences, const std::vector<double>& free_at,
                                           int64_t staleness, bool may_split) const {
  if (options_.gang.policy == SplitPolicy::never || sequences.empty()) return {};
  const Load load = load_of(sequences, free_at, staleness);
  const int64_t most = most_workers(load);
  if (most < 2) return {};
  if (options_.gang.policy == SplitPolicy::always) {
    return simulate(sequences, free_at, load, {.longer_than = 0, .range = 0, .most_workers = most}).gangs;
  }
  Outcome unsplit = simulate(sequences, free_at, load, kNotSplit);
  if (!may_split) return unsplit.gangs;
  return earliest(sequences, load, std::move(unsplit)).gangs;
}

// The longest sequence that does not cost too much: the shorter one is, the less of its time is that of transfers.
std::optional<PlannedGang> GangPlanner::link_check(std::span<const Sequence> sequences,
                                                   const std::vector<double>& free_at, int64_t staleness,
                                                   double wait_s) const {
  if (options_.gang.policy != SplitPolicy::automatic || sequences.empty()) return std::nullopt;
  Load load = load_of(sequences, free_at, staleness);
  if (most_workers(load) < 2) return std::nullopt;
  wait_s = std::min(wait_s, kMostOfStep * load.seconds);
  const std::vector<int64_t> pair = choose(free_at, 2);
  std::optional<PlannedGang> check;
  for (size_t place = 0; place < sequences.size() && sequences[place].length >= 2; ++place) {
    if (must_split(sequences[place])) continue;
    PlannedGang gang = form(sequences[place], pair, MessageCost::predicted);
    if (gang.exchange_s > wait_s) continue;
    gang.place = place;
    gang.reason = GangReason::link_check;
    check = std::move(gang);
    break;
  }
  if (!check) return std::nullopt;
  load.messages = MessageCost::none;
  const bool any = !earliest(sequences, load, simulate(sequences, free_at, load, kNotSplit)).gangs.empty();
  return any ? check : std::nullopt;
}

}  // namespace hat
