#include "hat/ledger/planner.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace hat {

namespace {
/// When workers that are free at `free_at` and do `speeds` of work a second have done `work` if none of them idles.
double common_end(std::vector<std::pair<double, double>> free_at_and_speed, double work) {
  std::ranges::sort(free_at_and_speed);
  double end = 0;
  double speed = 0;
  for (size_t i = 0; i < free_at_and_speed.size(); ++i) {
    const auto [at, own_speed] = free_at_and_speed[i];
    work -= (at - end) * speed;
    if (work <= 0) return at + work / speed;
    end = at;
    speed += own_speed;
  }
  return end + work / speed;
}
}  // namespace

double Planner::end_of_unit(double begin_s, double seconds, double past_barrier_s) const {
  const double at_barrier_s = begin_s + options_.before_barrier * seconds;
  return std::max(at_barrier_s, past_barrier_s) + (1 - options_.before_barrier) * seconds;
}

// A unit leaves the first barrier block in the backward pass, which takes twice as long as the forward pass, that long
// before its end.
Planner::Outlook Planner::outlook(int64_t step, const RunState& run, double now_s) const {
  Outlook outlook;
  std::vector<double>& ends = outlook.free_at;
  for (const WorkerState& worker : run.workers) ends.push_back(worker.since_s);
  std::vector<size_t> done(run.workers.size(), 0);  // units taken into account, by worker
  std::map<int64_t, double> end_of_step;            // of what is leased
  double past_barrier = 0;                          // all of the steps before
  int64_t last = step;
  for (const WorkerState& worker : run.workers) {
    if (!worker.assigned.empty()) last = std::max(last, worker.assigned.back().step);
  }
  const auto end_of_all_to = [&](int64_t s) {
    const auto committed = run.committed_at.find(s);
    if (committed != run.committed_at.end()) return committed->second;
    double time = 0;
    for (const auto& [other, end] : end_of_step) {
      if (other <= s) time = std::max(time, end);
    }
    return time;
  };
  for (int64_t s = run.committed; s <= last; ++s) {  // in order: a unit may have to wait for the steps before
    const double may_begin = end_of_all_to(needed_by(s));
    const double may_pass = past_barrier;
    if (s == step) outlook.past_barrier_s = may_pass;
    for (size_t w = 0; w < run.workers.size(); ++w) {
      const std::deque<Assigned>& assigned = run.workers[w].assigned;
      for (; done[w] < assigned.size() && assigned[done[w]].step == s; ++done[w]) {
        const double seconds = costs_.seconds(static_cast<int64_t>(w), assigned[done[w]].size);
        double end = end_of_unit(std::max(ends[w], may_begin), seconds, may_pass);
        // One that is late already will be late by as much again.
        if (done[w] == 0 && end < now_s) end = now_s + (now_s - end);
        ends[w] = end;
        end_of_step[s] = std::max(end_of_step[s], end);
        if (has_barrier()) past_barrier = std::max(past_barrier, end - 2 * options_.before_barrier * seconds);
      }
    }
  }
  const double may_begin = std::max(now_s, end_of_all_to(needed_by(step)));
  for (double& end : ends) end = std::max(end, may_begin);
  return outlook;
}

/// How much of what is left for a worker its next unit may be: all of it where units take as long as predicted, a
/// quarter where they do not.
double Planner::greatest_share() const {
  double sum = 0;
  int64_t known = 0;
  for (int64_t w = 0; w < options_.workers; ++w) {
    const double error = costs_.relative_error(w);
    if (std::isnan(error)) continue;
    sum += error;
    ++known;
  }
  constexpr double kLeast = 0.25;
  if (known == 0) return kLeast;
  return std::clamp(1 - 10 * sum / static_cast<double>(known), kLeast, 1.0);
}

/// Of the free sequences at `places`, which are longest first, those of the unit that begins with places[begin], as
/// indices of `places`; for a worker with room for `left` of cost until the step ends. `gaps`: a sequence that does not
/// fit is passed over; otherwise the unit ends there.
std::vector<size_t> Planner::unit_from(const FreeSequences& free, const std::vector<size_t>& places, size_t begin,
                                       double left, int64_t worker, bool gaps) const {
  const auto cost_of_tokens = [this](int64_t tokens) {
    return costs_.cost({.tokens = static_cast<double>(tokens), .area = 0});
  };
  std::vector<size_t> unit{begin};
  int64_t tokens = free.sequences[places[begin]].length;
  UnitSize size = size_of(free.sequences[places[begin]]);
  int64_t most_tokens = options_.unit_tokens;
  // Units of a size, so that the last one is no small rest: its gradient would be ready long before it has left.
  double most_cost = left / std::max(1.0, std::ceil(left / cost_of_tokens(options_.unit_tokens)));
  double most_s = options_.max_delay_s;
  const double rest = left - costs_.cost(size);
  // Too little for a unit of its own: it goes with this.
  if (rest > 0 && rest < cost_of_tokens(std::min(options_.least_tokens, options_.unit_tokens))) {
    most_tokens = std::max(most_tokens, free.longest);
    most_cost = left;
    most_s = std::numeric_limits<double>::infinity();
  }
  const int64_t shortest = free.sequences[places.back()].length;
  for (size_t i = begin + 1; i < places.size() && tokens + shortest <= most_tokens; ++i) {
    const Sequence& sequence = free.sequences[places[i]];
    UnitSize with = size;
    with += size_of(sequence);
    // The shortest one left may be too much by up to half of it, or what nobody takes would be one more unit.
    const double too_much = i + 1 == places.size() ? costs_.cost(size_of(sequence)) / 2 : 0;
    const bool is_too_long =
        costs_.cost(with) > most_cost + too_much || (costs_.knows_seconds() && costs_.seconds(worker, with) > most_s);
    if (tokens + sequence.length > most_tokens || (tokens >= options_.least_tokens && is_too_long)) {
      if (!gaps) break;
      continue;
    }
    unit.push_back(i);
    tokens += sequence.length;
    size = with;
  }
  return unit;
}

/// Places of the free sequences of a step that `worker` gets if every worker that is at work in the step takes a unit
/// whenever it becomes free: the longest sequence left that it can finish by the time when all could end together, or
/// that no other finishes earlier. None if the others will have taken all. The last worker of a step takes what is
/// left.
std::vector<size_t> Planner::unit_for(int64_t worker, int64_t step, const FreeSequences& free_sequences,
                                      const RunState& run, double now_s) const {
  if (free_sequences.sequences.empty()) return {};
  const auto [free_at, past_barrier_s] = outlook(step, run, now_s);
  const UnitSize full{.tokens = static_cast<double>(options_.unit_tokens), .area = 0};
  struct Free {
    double at;
    int64_t worker;
    double speed;  // cost per second
  };
  std::vector<Free> free;
  std::vector<std::pair<double, double>> free_at_and_speed;
  for (int64_t w = 0; w < options_.workers; ++w) {
    const WorkerState& state = run.workers[static_cast<size_t>(w)];
    if (w != worker && state.first_step > step) continue;
    const double at = free_at[static_cast<size_t>(w)];
    const double speed = costs_.cost(full) / costs_.seconds(w, full);
    free_at_and_speed.emplace_back(at, speed);
    // Others are left work only while they compute: whoever has not asked yet, or waits to be told, holds nothing up.
    // Unbounded, where nobody waits for the end of a step, they are left none: those who would be sent ahead meanwhile
    // do not come back.
    const bool is_left_work = !state.assigned.empty() && options_.staleness != kUnbounded;
    if (w == worker || is_left_work) free.push_back({.at = at, .worker = w, .speed = speed});
  }
  double work = 0;
  for (const Sequence& sequence : free_sequences.sequences) work += costs_.cost(size_of(sequence));
  const bool alone = free_at_and_speed.size() == 1;
  const double end_s = common_end(std::move(free_at_and_speed), work);
  const double share = greatest_share();
  const auto end_of = [&, past = past_barrier_s](const Free& on, const UnitSize& size) {
    return end_of_unit(on.at, costs_.seconds(on.worker, size), past);
  };
  // The one that asks goes first at equal times.
  const auto earlier = [worker](const Free& a, const Free& b) {
    return std::tuple(a.at, a.worker != worker, a.worker) < std::tuple(b.at, b.worker != worker, b.worker);
  };
  std::vector<size_t> places(free_sequences.sequences.size());
  std::iota(places.begin(), places.end(), size_t{0});
  while (!places.empty()) {
    const auto next = std::ranges::min_element(free, earlier);
    const double left = std::max(0.0, end_s - next->at) * next->speed;
    const auto is_for_next = [&](size_t place) {
      const UnitSize size = size_of(free_sequences.sequences[place]);
      if (costs_.cost(size) <= left) return true;
      const double end = end_of(*next, size);
      return std::ranges::all_of(free, [&](const Free& other) { return end_of(other, size) >= end; });
    };
    const auto first = std::ranges::find_if(places, is_for_next);
    if (first == places.end()) {  // all that is left ends earlier elsewhere
      if (next->worker == worker) return {};
      free.erase(next);
      continue;
    }
    // (A single worker's units do not depend on time.)
    std::vector<size_t> unit = unit_from(free_sequences, places, static_cast<size_t>(first - places.begin()),
                                         alone ? work : share * left, next->worker, next->worker == worker);
    if (next->worker == worker) {
      for (size_t& place : unit) place = places[place];
      return unit;
    }
    UnitSize size;
    for (const size_t i : unit) size += size_of(free_sequences.sequences[places[i]]);
    next->at = end_of(*next, size);
    places.erase(places.begin() + static_cast<std::ptrdiff_t>(unit.front()),
                 places.begin() + static_cast<std::ptrdiff_t>(unit.back()) + 1);  // no gaps
  }
  return {};
}

}  // namespace hat
