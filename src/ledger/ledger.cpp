#include "hat/ledger/ledger.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "hat/core/error.hpp"
#include "hat/ledger/partition.hpp"

namespace hat {

namespace {

std::vector<Sequence> longest_first(std::vector<Sequence> sequences) {
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Sequence& a, const Sequence& b) { return a.length > b.length; });
  return sequences;
}

/// Sequence i is worker i's (mod workers): equal counts, whatever their lengths.
std::vector<std::vector<Sequence>> dealt_out(const std::vector<Sequence>& sequences, size_t workers) {
  std::vector<std::vector<Sequence>> shares(workers);
  for (size_t i = 0; i < sequences.size(); ++i) shares[i % workers].push_back(sequences[i]);
  return shares;
}

/// Shares of nearly equal cost. The heaviest one is another worker's in every step.
std::vector<std::vector<Sequence>> balanced_shares(const std::vector<Sequence>& sequences, size_t workers, int64_t step,
                                                   const UnitCostModel& model) {
  std::vector<double> costs;
  costs.reserve(sequences.size());
  for (const Sequence& sequence : sequences) costs.push_back(model.cost(size_of(sequence)));
  const std::vector<std::vector<size_t>> sets = balanced_partition(costs, workers);
  std::vector<std::vector<Sequence>> shares(workers);
  for (size_t set = 0; set < workers; ++set) {
    std::vector<Sequence>& share = shares[(set + static_cast<size_t>(step)) % workers];
    for (const size_t i : sets[set]) share.push_back(sequences[i]);
  }
  return shares;
}

}  // namespace

std::vector<std::vector<Sequence>> pack_units(std::vector<Sequence> sequences, int64_t unit_tokens) {
  sequences = longest_first(std::move(sequences));
  std::vector<std::vector<Sequence>> units;
  int64_t room = 0;
  for (const Sequence& sequence : sequences) {
    if (units.empty() || sequence.length > room) {
      units.emplace_back();
      room = unit_tokens;
    }
    units.back().push_back(sequence);
    room -= sequence.length;
  }
  return units;
}

Ledger::Ledger(DataOrder& order, std::vector<std::vector<Sequence>> validation, const LedgerOptions& options)
    : order_(order),
      validation_(std::move(validation)),
      options_(options),
      costs_(options.workers, options.area_weight),
      phase_(Phase::training),
      pause_(options.first_step),  // the first pause: validation before training
      committed_(options.first_step),
      workers_(static_cast<size_t>(options.workers)) {
  advance_phase();
}

int64_t Ledger::next_pause(int64_t after) const {
  int64_t pause = options_.end_step;
  for (const int64_t every : {options_.evaluate_every, options_.pause_every}) {
    if (every > 0) pause = std::min(pause, (after / every + 1) * every);
  }
  return pause;
}

void Ledger::advance_phase() {
  if (phase_ == Phase::training && committed_ == pause_) {
    const bool due = pause_ == options_.first_step || pause_ == options_.end_step ||
                     (options_.evaluate_every > 0 && pause_ % options_.evaluate_every == 0);
    groups_.assign(due ? validation_.size() : 0, std::nullopt);
    groups_leased_ = 0;
    phase_ = Phase::evaluating;
  }
  if (phase_ == Phase::evaluating &&
      std::all_of(groups_.begin(), groups_.end(), [](const auto& group) { return group.has_value(); })) {
    if (!groups_.empty()) {
      EvaluationResult result{.step = pause_};
      for (const auto& group : groups_) {
        result.nats += group->nats;
        result.tokens += group->tokens;
      }
      finished_evaluations_.push_back(result);
    }
    phase_ = pause_ == options_.end_step ? Phase::finished : Phase::training;
    pause_ = next_pause(pause_);
  }
}

Ledger::Unit& Ledger::add_unit(OpenStep& step, std::vector<Sequence> sequences) {
  const auto order = static_cast<int64_t>(step.units.size());
  return step.units.emplace(next_unit_++, Unit{.order = order, .sequences = std::move(sequences)}).first->second;
}

Ledger::OpenStep& Ledger::open_step(int64_t step) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) return found->second;
  const Step& plan = order_.step(step);
  OpenStep& open = steps_[step];
  open.epoch = plan.epoch;
  open.target_tokens = plan.target_tokens;
  open.complete.assign(static_cast<size_t>(options_.completions), false);
  const auto workers = static_cast<size_t>(options_.workers);
  open.own_units.resize(workers);
  const auto add_shares = [&](const std::vector<std::vector<Sequence>>& shares) {
    for (size_t worker = 0; worker < workers; ++worker) {
      for (std::vector<Sequence>& unit : pack_units(shares[worker], options_.unit_tokens)) {
        open.own_units[worker].push_back(next_unit_);
        add_unit(open, std::move(unit));
      }
    }
  };
  switch (options_.dispatch) {
    case Dispatch::static_:
      add_shares(dealt_out(plan.sequences, workers));
      break;
    case Dispatch::sorted:
      add_shares(dealt_out(longest_first(plan.sequences), workers));
      break;
    case Dispatch::balanced:
      add_shares(balanced_shares(plan.sequences, workers, step, costs_));
      break;
    case Dispatch::on_demand:
      if (plans_ahead()) {
        const std::vector<Sequence> sequences = longest_first(plan.sequences);
        open.free_sequences.assign(sequences.begin(), sequences.end());
        open.longest = sequences.front().length;
        break;
      }
      for (std::vector<Sequence>& unit : pack_units(plan.sequences, options_.unit_tokens)) {
        open.own_units[open.units.size() % workers].push_back(next_unit_);
        add_unit(open, std::move(unit));
      }
      break;
  }
  return open;
}

Lease Ledger::next(int64_t worker, double now_s) {
  switch (phase_) {
    case Phase::training:
      return lease_training(worker, now_s);
    case Phase::evaluating:
      return lease_evaluation();
    case Phase::finished:
      break;
  }
  return {.kind = LeaseKind::finish, .step = options_.end_step};
}

Lease Ledger::lease_training(int64_t worker, double now_s) {
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  const int64_t limit = std::min(pause_, committed_ + options_.lookahead);
  for (int64_t step = std::max(committed_, state.first_step); step < limit; ++step) {
    const std::optional<int64_t> unit = take_unit(worker, step, now_s);
    if (!unit) continue;
    state.first_step = step;
    if (state.assigned.empty()) state.since_s = now_s;
    Lease lease = lease_unit(step, *unit);
    state.assigned.push_back({.step = step, .unit = *unit, .size = size_of(lease.sequences)});
    return lease;
  }
  state.first_step = std::max(state.first_step, limit);
  return {.kind = LeaseKind::none, .step = limit};
}

Lease Ledger::lease_unit(int64_t step, int64_t number) {
  Unit& unit = unit_of(step, number);
  if (unit.state != UnitState::free) throw Error(fmt::format("unit {} was to be leased twice", number));
  unit.state = UnitState::leased;
  return {.kind = LeaseKind::train,
          .unit = number,
          .generation = 1,
          .step = step,
          .order = unit.order,
          .sequences = unit.sequences};
}

/// Number of the unit of this step that the worker shall compute next, if there is one for it.
std::optional<int64_t> Ledger::take_unit(int64_t worker, int64_t step, double now_s) {
  OpenStep& open = open_step(step);
  if (!plans_ahead()) {
    std::deque<int64_t>& own = open.own_units[static_cast<size_t>(worker)];
    if (own.empty()) return std::nullopt;
    const int64_t number = own.front();
    own.pop_front();
    return number;
  }
  const std::vector<size_t> places = planned_unit(worker, open, step, now_s);
  if (places.empty()) return std::nullopt;
  std::vector<Sequence> sequences;
  sequences.reserve(places.size());
  for (const size_t place : places) sequences.push_back(open.free_sequences[place]);
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    open.free_sequences.erase(open.free_sequences.begin() + static_cast<std::ptrdiff_t>(*place));
  }
  const int64_t number = next_unit_;
  add_unit(open, std::move(sequences));
  return number;
}

/// When each worker will have done what it has, as far as can be told, and units of `step` may begin.
std::vector<double> Ledger::free_at(double now_s, int64_t step) const {
  std::vector<double> ends;
  for (const WorkerState& worker : workers_) ends.push_back(worker.since_s);
  std::vector<size_t> done(workers_.size(), 0);  // units taken into account, by worker
  std::map<int64_t, double> end_of_step;         // of what is leased
  int64_t last = step;
  for (const WorkerState& worker : workers_) {
    if (!worker.assigned.empty()) last = std::max(last, worker.assigned.back().step);
  }
  const auto end_of_all_to = [&](int64_t s) {
    const auto committed = committed_at_.find(s);
    if (committed != committed_at_.end()) return committed->second;
    double time = 0;
    for (const auto& [other, end] : end_of_step) {
      if (other <= s) time = std::max(time, end);
    }
    return time;
  };
  for (int64_t s = committed_; s <= last; ++s) {  // in order: a unit may have to wait for the steps before
    const double may_begin = end_of_all_to(needed_by(s));
    const double may_pass = options_.before_barrier < 1 ? end_of_all_to(s - 1) : 0;  // the first barrier block
    for (size_t w = 0; w < workers_.size(); ++w) {
      const std::deque<Assigned>& assigned = workers_[w].assigned;
      for (; done[w] < assigned.size() && assigned[done[w]].step == s; ++done[w]) {
        const double seconds = costs_.seconds(static_cast<int64_t>(w), assigned[done[w]].size);
        const double at_barrier = std::max(ends[w], may_begin) + options_.before_barrier * seconds;
        double end = std::max(at_barrier, may_pass) + (1 - options_.before_barrier) * seconds;
        // One that is late already will be late by as much again.
        if (done[w] == 0 && end < now_s) end = now_s + (now_s - end);
        ends[w] = end;
        end_of_step[s] = std::max(end_of_step[s], end);
      }
    }
  }
  const double may_begin = std::max(now_s, end_of_all_to(needed_by(step)));
  for (double& end : ends) end = std::max(end, may_begin);
  return ends;
}

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

/// How much of what is left for a worker its next unit may be: all of it where units take as long as predicted, a
/// quarter where they do not.
double Ledger::greatest_share() const {
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
std::vector<size_t> Ledger::unit_from(const OpenStep& step, const std::vector<size_t>& places, size_t begin,
                                      double left, int64_t worker, bool gaps) const {
  const auto cost_of_tokens = [this](int64_t tokens) {
    return costs_.cost({.tokens = static_cast<double>(tokens), .area = 0});
  };
  std::vector<size_t> unit{begin};
  int64_t tokens = step.free_sequences[places[begin]].length;
  UnitSize size = size_of(step.free_sequences[places[begin]]);
  int64_t most_tokens = options_.unit_tokens;
  // Units of a size, so that the last one is no small rest: its gradient would be ready long before it has left.
  double most_cost = left / std::max(1.0, std::ceil(left / cost_of_tokens(options_.unit_tokens)));
  double most_s = options_.max_delay_s;
  const double rest = left - costs_.cost(size);
  if (rest > 0 &&
      rest < cost_of_tokens(options_.least_tokens)) {  // too little for a unit of its own: it goes with this
    most_tokens = std::max(most_tokens, step.longest);
    most_cost = left;
    most_s = std::numeric_limits<double>::infinity();
  }
  const int64_t shortest = step.free_sequences[places.back()].length;
  for (size_t i = begin + 1; i < places.size() && tokens + shortest <= most_tokens; ++i) {
    const Sequence& sequence = step.free_sequences[places[i]];
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
std::vector<size_t> Ledger::planned_unit(int64_t worker, const OpenStep& step, int64_t index, double now_s) const {
  if (step.free_sequences.empty()) return {};
  const std::vector<double> ends = free_at(now_s, index);
  const UnitSize full{.tokens = static_cast<double>(options_.unit_tokens), .area = 0};
  struct Free {
    double at;
    int64_t worker;
    double speed;  // cost per second
  };
  std::vector<Free> free;
  std::vector<std::pair<double, double>> free_at_and_speed;
  for (int64_t w = 0; w < options_.workers; ++w) {
    const WorkerState& state = workers_[static_cast<size_t>(w)];
    if (w != worker && state.first_step > index) continue;
    const double at = ends[static_cast<size_t>(w)];
    const double speed = costs_.cost(full) / costs_.seconds(w, full);
    free_at_and_speed.emplace_back(at, speed);
    // Others are left work only while they compute: whoever has not asked yet, or waits to be told, holds nothing up.
    // Unbounded, where nobody waits for the end of a step, they are left none: those who would be sent ahead meanwhile
    // do not come back.
    const bool is_left_work = !state.assigned.empty() && options_.staleness != kUnbounded;
    if (w == worker || is_left_work) free.push_back({.at = at, .worker = w, .speed = speed});
  }
  double work = 0;
  for (const Sequence& sequence : step.free_sequences) work += costs_.cost(size_of(sequence));
  const bool alone = free_at_and_speed.size() == 1;
  const double end_s = common_end(std::move(free_at_and_speed), work);
  const double share = greatest_share();
  // The one that asks goes first at equal times.
  const auto earlier = [worker](const Free& a, const Free& b) {
    return std::tuple(a.at, a.worker != worker, a.worker) < std::tuple(b.at, b.worker != worker, b.worker);
  };
  std::vector<size_t> places(step.free_sequences.size());
  std::iota(places.begin(), places.end(), size_t{0});
  while (!places.empty()) {
    const auto next = std::ranges::min_element(free, earlier);
    const double left = std::max(0.0, end_s - next->at) * next->speed;
    const auto is_for_next = [&](size_t place) {
      const UnitSize size = size_of(step.free_sequences[place]);
      if (costs_.cost(size) <= left) return true;
      const double end = next->at + costs_.seconds(next->worker, size);
      return std::ranges::all_of(
          free, [&](const Free& other) { return other.at + costs_.seconds(other.worker, size) >= end; });
    };
    const auto first = std::ranges::find_if(places, is_for_next);
    if (first == places.end()) {  // all that is left ends earlier elsewhere
      if (next->worker == worker) return {};
      free.erase(next);
      continue;
    }
    // (A single worker's units do not depend on time.)
    std::vector<size_t> unit = unit_from(step, places, static_cast<size_t>(first - places.begin()),
                                         alone ? work : share * left, next->worker, next->worker == worker);
    if (next->worker == worker) {
      for (size_t& place : unit) place = places[place];
      return unit;
    }
    UnitSize size;
    for (const size_t i : unit) size += size_of(step.free_sequences[places[i]]);
    next->at += costs_.seconds(next->worker, size);
    places.erase(places.begin() + static_cast<std::ptrdiff_t>(unit.front()),
                 places.begin() + static_cast<std::ptrdiff_t>(unit.back()) + 1);  // no gaps
  }
  return {};
}

Lease Ledger::lease_evaluation() {
  if (groups_leased_ == groups_.size()) return {.kind = LeaseKind::none, .step = pause_};
  const size_t group = groups_leased_++;
  return {.kind = LeaseKind::evaluate,
          .unit = static_cast<int64_t>(group),
          .generation = 1,
          .step = pause_,
          .sequences = validation_[group]};
}

Ledger::Unit& Ledger::unit_of(int64_t step, int64_t number) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) {
    const auto unit = found->second.units.find(number);
    if (unit != found->second.units.end()) return unit->second;
  }
  throw Error(fmt::format("unit {} of step {} was reported, but the ledger has no such unit open", number, step));
}

void Ledger::unit_computed(const UnitReport& report, double now_s) {
  Unit& unit = unit_of(report.step, report.unit);
  if (unit.state != UnitState::leased) {
    throw Error(fmt::format("unit {} of step {} was reported twice", report.unit, report.step));
  }
  unit.state = UnitState::computed;
  unit.nats = report.nats;
  unit.tokens = report.tokens;
  ++steps_.at(report.step).units_computed;
  WorkerState& worker = workers_[static_cast<size_t>(report.worker)];
  std::erase_if(worker.assigned, [&](const Assigned& assigned) { return assigned.unit == report.unit; });
  worker.since_s = now_s;
  costs_.observe(report.worker, size_of(unit.sequences), report.seconds);
  commit_complete_steps(now_s);
}

void Ledger::server_completed_step(const StepComplete& message, double now_s) {
  const auto found = steps_.find(message.step);
  if (found != steps_.end()) {
    std::vector<int64_t>& counts = found->second.staleness_counts;
    for (const BlockStaleness& block : message.block_staleness) {
      const auto late = static_cast<size_t>(block.late);
      if (counts.size() <= late) counts.resize(late + 1, 0);
      counts[late] += block.pushes;
    }
  }
  completed(message.server, message.step, now_s);
}

void Ledger::completed(int64_t completion, int64_t step, double now_s) {
  const auto found = steps_.find(step);
  if (found == steps_.end() || completion < 0 || completion >= options_.completions) {
    throw Error(fmt::format("completion {} of step {} came in, but the ledger has no such completion or step open",
                            completion, step));
  }
  std::vector<bool>& complete = found->second.complete;
  const auto number = static_cast<size_t>(completion);
  if (complete[number]) throw Error(fmt::format("completion {} of step {} came in twice", completion, step));
  complete[number] = true;
  commit_complete_steps(now_s);
}

void Ledger::commit_complete_steps(double now_s) {
  for (auto found = steps_.find(committed_); found != steps_.end(); found = steps_.find(committed_)) {
    OpenStep& step = found->second;
    const bool computed = step.units_computed == static_cast<int64_t>(step.units.size());
    if (!computed || !std::all_of(step.complete.begin(), step.complete.end(), [](bool c) { return c; })) return;
    StepResult result{.step = committed_, .epoch = step.epoch, .staleness_counts = step.staleness_counts};
    for (const auto& [number, unit] : step.units) {  // in unit order, so that equal units give equal bits
      result.nats += unit.nats;
      result.tokens += unit.tokens;
    }
    if (result.tokens != step.target_tokens) {
      throw Error(fmt::format("step {} trained {} target tokens, but the data order has {}", committed_, result.tokens,
                              step.target_tokens));
    }
    finished_steps_.push_back(std::move(result));
    steps_.erase(found);
    committed_at_[committed_] = now_s;
    committed_at_.erase(committed_ - 1 - options_.staleness - options_.lookahead);
    ++committed_;
    advance_phase();
  }
}

void Ledger::group_evaluated(const EvaluationReport& report) {
  if (report.unit < 0 || report.unit >= static_cast<int64_t>(groups_leased_)) {
    throw Error(fmt::format("validation group {} was reported, but it is not leased", report.unit));
  }
  std::optional<EvaluationReport>& group = groups_[static_cast<size_t>(report.unit)];
  if (group.has_value()) throw Error(fmt::format("validation group {} was reported twice", report.unit));
  group = report;
  advance_phase();
}

std::vector<int64_t> Ledger::missing_completions() const {
  std::vector<int64_t> missing;
  const auto step = steps_.find(committed_);
  if (step == steps_.end()) return missing;
  for (size_t number = 0; number < step->second.complete.size(); ++number) {
    if (!step->second.complete[number]) missing.push_back(static_cast<int64_t>(number));
  }
  return missing;
}

std::vector<StepResult> Ledger::take_steps() { return std::exchange(finished_steps_, {}); }
std::vector<EvaluationResult> Ledger::take_evaluations() { return std::exchange(finished_evaluations_, {}); }

}  // namespace hat
