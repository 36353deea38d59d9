#include "hat/ledger/planner.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace hat {

double Planner::end_of_unit(double begin_s, double seconds, double past_barrier_s) const {
  const double at_barrier_s = begin_s + options_.before_barrier * seconds;
  return std::max(at_barrier_s, past_barrier_s) + (1 - options_.before_barrier) * seconds;
}

// A unit leaves the first barrier block in the backward pass, which takes twice as long as the forward pass, that long
// before its end.
Planner::Outlook Planner::outlook(int64_t worker, int64_t step, const RunState& run, double now_s) const {
  Outlook outlook;
  std::vector<double>& ends = outlook.free_at;
  std::map<int64_t, int64_t> absent;  // by gang: members that have not come to it
  int64_t last = step;
  for (const WorkerState& state : run.workers) {
    ends.push_back(state.since_s);
    for (const std::deque<Assigned>* units : {&state.assigned, &state.reserved}) {
      if (!units->empty()) last = std::max(last, units->back().step);
      for (const Assigned& unit : *units) {
        if (unit.gang != Assigned::kNoGang) ++absent[unit.gang];
      }
    }
  }
  outlook.free_before = ends;
  std::vector<size_t> done(run.workers.size(), 0);        // units taken into account, by worker
  std::vector<bool> is_there(run.workers.size(), false);  // at the gang that it comes to next
  std::map<int64_t, double> end_of_step;                  // of what is leased
  double past_barrier = 0;                                // all of the steps before
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
    // Units of a worker up to the next gang whose other members are not there; whether any was new.
    const auto go_on = [&](size_t w) {
      bool any = false;
      const WorkerState& state = run.workers[w];
      for (; done[w] < state.assigned.size() + state.reserved.size(); ++done[w]) {
        const bool is_reserved = done[w] >= state.assigned.size();
        const Assigned& unit = is_reserved ? state.reserved[done[w] - state.assigned.size()] : state.assigned[done[w]];
        if (unit.step != s) break;
        double begin = std::max(ends[w], may_begin);
        if (unit.gang != Assigned::kNoGang) {
          double& together = outlook.gang_begin[unit.gang];
          if (!is_there[w]) {
            together = std::max(together, begin);
            --absent.at(unit.gang);
            any = true;
          }
          is_there[w] = absent.at(unit.gang) > 0;
          if (is_there[w]) break;
          begin = together;
        }
        const double seconds = costs_.seconds(static_cast<int64_t>(w), unit.size) + unit.exchange_s;
        double end = end_of_unit(begin, seconds, may_pass);
        // One that is late already will be late by as much again.
        if (done[w] == 0 && !is_reserved && end < now_s) end = now_s + (now_s - end);
        ends[w] = end;
        if (!is_reserved) outlook.free_before[w] = end;
        end_of_step[s] = std::max(end_of_step[s], end);
        if (has_barrier()) past_barrier = std::max(past_barrier, end - 2 * options_.before_barrier * seconds);
        any = true;
      }
      return any;
    };
    for (bool any = true; any;) {
      any = false;
      for (size_t w = 0; w < run.workers.size(); ++w) any = go_on(w) || any;
    }
    const auto left = run.free.find(s);
    if (s >= step || left == run.free.end() || left->second.sequences.empty()) continue;
    using Free = std::pair<double, size_t>;  // since when, worker
    std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
    for (size_t w = 0; w < run.workers.size(); ++w) {
      if (static_cast<int64_t>(w) != worker && run.workers[w].first_step <= s) free.emplace(ends[w], w);
    }
    if (free.empty()) continue;
    for (const Sequence& sequence : left->second.sequences) {
      const auto [since, w] = free.top();
      free.pop();
      const double seconds = costs_.seconds(static_cast<int64_t>(w), size_of(sequence));
      ends[w] = end_of_unit(std::max({since, may_begin, now_s}), seconds, may_pass);
      outlook.free_before[w] = ends[w];
      free.emplace(ends[w], w);
      end_of_step[s] = std::max(end_of_step[s], ends[w]);
      if (has_barrier()) past_barrier = std::max(past_barrier, ends[w] - 2 * options_.before_barrier * seconds);
    }
  }
  const double may_begin = std::max(now_s, end_of_all_to(needed_by(step)));
  for (double& end : ends) end = std::max(end, may_begin);
  for (double& end : outlook.free_before) end = std::max(end, may_begin);
  return outlook;
}

std::vector<double> Planner::free_at(int64_t worker, int64_t step, const RunState& run, double now_s) const {
  return outlook(worker, step, run, now_s).free_at;
}

std::vector<size_t> Planner::unit_before_gang(int64_t worker, int64_t step, const RunState& run, double now_s) const {
  const FreeSequences& free_sequences = run.free.at(step);
  constexpr double kSafety = 0.9;  // all members wait if it takes longer than predicted
  const Outlook ahead = outlook(worker, step, run, now_s);
  const auto w = static_cast<size_t>(worker);
  const double room_s = kSafety * (ahead.gang_begin.at(run.workers[w].reserved.front().gang) - ahead.free_before[w]);
  std::vector<size_t> unit;  // longest first, as long as all of it ends in time
  UnitSize size;
  for (size_t place = 0; place < free_sequences.sequences.size(); ++place) {
    UnitSize with = size;
    with += size_of(free_sequences.sequences[place]);
    const double seconds = costs_.seconds(worker, with);
    const double end_s = end_of_unit(ahead.free_before[w], seconds, ahead.past_barrier_s);
    const bool too_many = !unit.empty() && with.tokens > static_cast<double>(options_.unit_tokens);
    if (too_many || end_s - ahead.free_before[w] > room_s) continue;
    unit.push_back(place);
    size = with;
  }
  return unit;
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

std::vector<size_t> Planner::unit_for(int64_t worker, int64_t step, const RunState& run, double now_s) const {
  const FreeSequences& free_sequences = run.free.at(step);
  if (free_sequences.sequences.empty()) return {};
  const Outlook ahead = outlook(worker, step, run, now_s);
  struct Free {
    double at;
    int64_t worker;
  };
  std::vector<Free> free;
  int64_t in_step = 0;  // workers that may still get units of it
  for (int64_t w = 0; w < options_.workers; ++w) {
    const WorkerState& state = run.workers[static_cast<size_t>(w)];
    if (w != worker && state.first_step > step) continue;
    ++in_step;
    // Others are left work only while they compute: whoever has not asked yet, or waits to be told, holds nothing up.
    // Unbounded, where nobody waits for the end of a step, they are left none: those who would be sent ahead meanwhile
    // do not come back.
    const bool is_left_work = !(state.assigned.empty() && state.reserved.empty()) && options_.staleness != kUnbounded;
    if (w == worker || is_left_work) free.push_back({.at = ahead.free_at[static_cast<size_t>(w)], .worker = w});
  }
  // Longest first, each for whom can finish it earliest.
  const auto end_of = [&](const Free& on, const UnitSize& size) {
    return end_of_unit(on.at, costs_.seconds(on.worker, size), ahead.past_barrier_s);
  };
  std::vector<size_t> own;
  std::vector<size_t> others;
  for (size_t place = 0; place < free_sequences.sequences.size(); ++place) {
    const UnitSize size = size_of(free_sequences.sequences[place]);
    Free* first = nullptr;
    double end = 0;
    for (Free& other : free) {
      const double other_end = end_of(other, size);
      const bool earlier = first == nullptr || other_end < end || (other_end == end && other.worker == worker);
      if (!earlier) continue;
      first = &other;
      end = other_end;
    }
    first->at = end;
    (first->worker == worker ? own : others).push_back(place);
  }
  if (own.empty()) return {};
  UnitSize own_size;
  for (const size_t place : own) own_size += size_of(free_sequences.sequences[place]);
  const double share = greatest_share();
  const UnitSize least{.tokens = static_cast<double>(options_.least_tokens), .area = 0};
  // Too little for a unit: some of the others', shortest first, as far as ends cannot be told anyway.
  Free& self = *std::ranges::find(free, worker, &Free::worker);
  const double end_s = self.at + 1.5 * (1 - share) * costs_.seconds(worker, least);
  for (auto place = others.rbegin(); place != others.rend(); ++place) {
    const UnitSize size = size_of(free_sequences.sequences[*place]);
    if (own_size.tokens >= least.tokens || end_of(self, size) > end_s) break;
    self.at = end_of(self, size);
    own_size += size;
    own.push_back(*place);
  }
  std::ranges::sort(own);
  // Who asks first does not take what others will ask for in a moment; a single worker's units do not depend on time.
  // What is left for later is a unit of its own, too.
  const double least_cost = costs_.cost(least);
  const double own_cost = costs_.cost(own_size) * static_cast<double>(free.size()) / static_cast<double>(in_step);
  const bool takes_all = in_step == 1 || own_cost < 2 * least_cost;
  const double left = takes_all ? own_cost : std::max(least_cost, share * own_cost);
  std::vector<size_t> unit = unit_from(free_sequences, own, 0, left, worker, /*gaps=*/true);
  for (size_t& place : unit) place = own[place];
  return unit;
}

}  // namespace hat
