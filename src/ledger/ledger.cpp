#include "hat/ledger/ledger.hpp"

#include <algorithm>
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

/// Shares of nearly equal cost beside what workers have already. The heaviest one is another worker's in every step.
std::vector<std::vector<Sequence>> balanced_shares(const std::vector<Sequence>& sequences, std::vector<double> loads,
                                                   int64_t step, const UnitCostModel& model) {
  const size_t workers = loads.size();
  if (std::ranges::any_of(loads, [](double load) { return load > 0; })) {  // one after the other where most is missing
    std::vector<std::vector<Sequence>> shares(workers);
    for (const Sequence& sequence : longest_first(sequences)) {
      const auto least = std::ranges::min_element(loads);
      *least += model.cost(size_of(sequence));
      shares[static_cast<size_t>(least - loads.begin())].push_back(sequence);
    }
    return shares;
  }
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
      prior_costs_(options.workers, options.area_weight),
      planner_(options_, costs_),
      gangs_(options_, options.deterministic ? prior_costs_ : costs_),
      trial_(options.workers, std::max<int64_t>(options.staleness, 0), options.before_barrier),
      phase_(Phase::training),
      pause_(options.first_step),  // the first pause: validation before training
      run_{.committed = options.first_step,
           .committed_at = {},
           .workers = std::vector<WorkerState>(static_cast<size_t>(options.workers))} {
  advance_phase(0);
}

int64_t Ledger::next_pause(int64_t after) const {
  int64_t pause = options_.end_step;
  for (const int64_t every : {options_.evaluate_every, options_.pause_every}) {
    if (every > 0) pause = std::min(pause, (after / every + 1) * every);
  }
  return pause;
}

/// One behind the last step of which a unit is leased, or which a worker was told to have no unit of: that one may have
/// entered the step's rings, which then have to come to their end. (A step is open before it is known who takes units
/// of it.)
int64_t Ledger::first_step_not_begun() const {
  int64_t end = run_.committed;
  if (options_.staleness != kUnbounded) {
    for (const WorkerState& worker : run_.workers) end = std::max(end, worker.first_step);
  }
  for (auto step = steps_.rbegin(); step != steps_.rend() && step->first >= end; ++step) {
    const bool is_leased =
        std::ranges::any_of(step->second.units, [](const auto& unit) { return unit.second.state != UnitState::free; });
    if (is_leased) return step->first + 1;
  }
  return end;
}

int64_t Ledger::stop() {
  if (stopped_ || phase_ == Phase::finished) return options_.end_step;
  stopped_ = true;
  const int64_t end = first_step_not_begun();
  steps_.erase(steps_.lower_bound(end), steps_.end());
  run_.free.erase(run_.free.lower_bound(end), run_.free.end());
  for (WorkerState& worker : run_.workers) {  // of gangs that will not come together
    std::erase_if(worker.reserved, [&](const Assigned& range) { return range.step >= end; });
  }
  options_.end_step = pause_ = end;
  advance_phase(0);
  return end;
}

void Ledger::advance_phase(double now_s) {
  if (stopped_) {
    if (run_.committed == options_.end_step) phase_ = Phase::finished;
    return;
  }
  if (phase_ == Phase::training && run_.committed == pause_) {
    const bool due = pause_ == options_.first_step || pause_ == options_.end_step ||
                     (options_.evaluate_every > 0 && pause_ % options_.evaluate_every == 0);
    groups_.assign(due ? validation_.size() : 0, std::nullopt);
    groups_leased_ = 0;
    phase_ = Phase::evaluating;
    trial_.pause();
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
    trial_.resume(now_s, pause_ - run_.committed);
  }
}

Ledger::Unit& Ledger::add_unit(OpenStep& step, std::vector<Sequence> sequences) {
  const auto order = static_cast<int64_t>(step.units.size());
  return step.units.emplace(next_unit_++, Unit{.order = order, .sequences = std::move(sequences)}).first->second;
}

void Ledger::add_gang(OpenStep& open, int64_t step, const Sequence& sequence, PlannedGang plan) {
  const auto gang = std::ssize(open.gangs);
  int64_t earlier = 0;
  for (size_t member = 0; member < plan.workers.size(); ++member) {
    const auto worker = static_cast<size_t>(plan.workers[member]);
    const Sequence range{.document = sequence.document,
                         .begin = sequence.begin + earlier,
                         .length = plan.lengths[member],
                         .earlier = earlier};
    earlier += range.length;
    const int64_t number = next_unit_;
    add_unit(open, {range}).gang = gang;
    open.own_units[worker].push_back(number);
    run_.workers[worker].reserved.push_back(
        {.step = step, .unit = number, .size = size_of(range), .gang = next_gang_, .exchange_s = plan.exchange_s});
  }
  open.gangs.push_back({.number = next_gang_++, .plan = std::move(plan)});
}

/// `sequences`: longest first.
std::vector<PlannedGang> Ledger::plan_gangs(const std::vector<Sequence>& sequences, int64_t worker, int64_t step,
                                            double now_s) {
  // Before units are predicted in seconds nothing is known that a trial could compare.
  const bool is_measured = tries_splitting() && costs_.knows_seconds();
  const bool may_split = !is_measured || trial_.may_split(step);
  // Units fixed in advance: as if all began at once.
  const std::vector<double> free_at =
      plans_ahead() ? planner_.free_at(worker, step, run_, now_s) : std::vector<double>(run_.workers.size(), 0.0);
  const int64_t staleness = step < options_.sync_steps ? 0 : options_.staleness;
  std::vector<PlannedGang> plan = gangs_.plan(sequences, free_at, staleness, may_split);
  const bool has_chosen =
      std::ranges::any_of(plan, [](const PlannedGang& gang) { return gang.reason == GangReason::ends_earlier; });
  const double risked_s = is_measured && may_split && !has_chosen ? link_checks_.seconds(step) : 0;
  if (risked_s <= 0) return plan;
  if (std::optional<PlannedGang> check = gangs_.link_check(sequences, free_at, staleness, risked_s)) {
    link_checks_.plan(step, check->exchange_s);
    plan.push_back(std::move(*check));
  }
  return plan;
}

/// Returns the sequences that are none's, in their order.
std::vector<Sequence> Ledger::form_gangs(OpenStep& open, int64_t worker, int64_t step, std::vector<Sequence> sequences,
                                         double now_s) {
  if (options_.gang.policy == SplitPolicy::never || options_.staleness == kUnbounded) return sequences;
  const std::vector<Sequence> sorted = longest_first(sequences);
  for (PlannedGang& gang : plan_gangs(sorted, worker, step, now_s)) {
    const Sequence& sequence = sorted[gang.place];
    sequences.erase(std::ranges::find(sequences, sequence));
    add_gang(open, step, sequence, std::move(gang));
  }
  return sequences;
}

Ledger::OpenStep& Ledger::open_step(int64_t worker, int64_t step, double now_s) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) return found->second;
  const Step& plan = order_.step(step);
  OpenStep& open = steps_[step];
  open.epoch = plan.epoch;
  open.target_tokens = plan.target_tokens;
  open.complete.assign(static_cast<size_t>(options_.completions), false);
  const auto workers = static_cast<size_t>(options_.workers);
  open.own_units.resize(workers);
  for (const Sequence& sequence : plan.sequences) {
    const double cost = costs_.cost(size_of(sequence));
    open.cost += cost;
    open.longest_cost = std::max(open.longest_cost, cost);
  }
  const std::vector<Sequence> sequences = form_gangs(open, worker, step, plan.sequences, now_s);
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
      add_shares(dealt_out(sequences, workers));
      break;
    case Dispatch::sorted:
      add_shares(dealt_out(longest_first(sequences), workers));
      break;
    case Dispatch::balanced: {
      std::vector<double> loads(workers, 0.0);
      for (size_t worker = 0; worker < workers; ++worker) {
        for (const Assigned& range : run_.workers[worker].reserved) {
          if (range.step == step) loads[worker] += costs_.cost(range.size);
        }
      }
      add_shares(balanced_shares(sequences, std::move(loads), step, costs_));
      break;
    }
    case Dispatch::on_demand:
      if (plans_ahead()) {
        const std::vector<Sequence> sorted = longest_first(sequences);
        run_.free[step] = {.sequences = {sorted.begin(), sorted.end()},
                           .longest = sorted.empty() ? 0 : sorted.front().length};
        break;
      }
      for (std::vector<Sequence>& unit : pack_units(sequences, options_.unit_tokens)) {
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
  WorkerState& state = run_.workers[static_cast<size_t>(worker)];
  const int64_t limit = std::min(pause_, run_.committed + options_.lookahead);
  for (int64_t step = std::max(run_.committed, state.first_step); step < limit; ++step) {
    const std::optional<int64_t> unit = take_unit(worker, step, now_s);
    if (!unit) continue;
    state.first_step = step;
    if (state.assigned.empty()) state.since_s = now_s;
    Lease lease = lease_unit(step, *unit);
    if (!state.reserved.empty() && state.reserved.front().unit == *unit) {
      state.assigned.push_back(state.reserved.front());
      state.reserved.pop_front();
    } else {
      state.assigned.push_back({.step = step, .unit = *unit, .size = size_of(lease.sequences)});
    }
    return lease;
  }
  state.first_step = std::max(state.first_step, limit);
  return {.kind = LeaseKind::none, .step = limit};
}

Lease Ledger::lease_unit(int64_t step, int64_t number) {
  Unit& unit = unit_of(step, number);
  if (unit.state != UnitState::free) throw Error(fmt::format("unit {} was to be leased twice", number));
  unit.state = UnitState::leased;
  Lease lease{.kind = LeaseKind::train,
              .unit = number,
              .generation = 1,
              .step = step,
              .order = unit.order,
              .sequences = unit.sequences};
  if (unit.gang != Assigned::kNoGang) {
    const PlannedGang& gang = steps_.at(step).gangs[static_cast<size_t>(unit.gang)].plan;
    for (size_t member = 0; member < gang.workers.size(); ++member) {
      lease.gang.push_back({.worker = gang.workers[member], .length = gang.lengths[member]});
    }
  }
  return lease;
}

/// Number of the unit of this step that the worker shall compute next, if there is one for it.
std::optional<int64_t> Ledger::take_unit(int64_t worker, int64_t step, double now_s) {
  OpenStep& open = open_step(worker, step, now_s);
  std::deque<int64_t>& own = open.own_units[static_cast<size_t>(worker)];
  const auto take_own = [&own] {
    const int64_t number = own.front();
    own.pop_front();
    return number;
  };
  if (!plans_ahead()) return own.empty() ? std::nullopt : std::optional(take_own());
  const std::vector<size_t> places =
      own.empty() ? planner_.unit_for(worker, step, run_, now_s) : planner_.unit_before_gang(worker, step, run_, now_s);
  if (places.empty()) return own.empty() ? std::nullopt : std::optional(take_own());
  std::deque<Sequence>& free = run_.free.at(step).sequences;
  std::vector<Sequence> sequences;
  sequences.reserve(places.size());
  for (const size_t place : places) sequences.push_back(free[place]);
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    free.erase(free.begin() + static_cast<std::ptrdiff_t>(*place));
  }
  const int64_t number = next_unit_;
  add_unit(open, std::move(sequences));
  return number;
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
  if (report.worker < 0 || report.worker >= options_.workers) {
    throw Error(fmt::format("unit {} of step {} was reported by worker {}, but there are {}", report.unit, report.step,
                            report.worker, options_.workers));
  }
  Unit& unit = unit_of(report.step, report.unit);
  if (unit.state != UnitState::leased) {
    throw Error(fmt::format("unit {} of step {} was reported twice", report.unit, report.step));
  }
  unit.state = UnitState::computed;
  unit.nats = report.nats;
  unit.tokens = report.tokens;
  ++steps_.at(report.step).units_computed;
  WorkerState& worker = run_.workers[static_cast<size_t>(report.worker)];
  std::erase_if(worker.assigned, [&](const Assigned& assigned) { return assigned.unit == report.unit; });
  worker.since_s = now_s;
  costs_.observe(report.worker, size_of(unit.sequences), report.seconds);
  if (unit.gang != Assigned::kNoGang) gang_computed(steps_.at(report.step), unit, report);
  commit_complete_steps(now_s);
}

// All members end at about the same time; the one that began last waited least, so its time is that of the gang.
void Ledger::gang_computed(OpenStep& step, const Unit& unit, const UnitReport& report) {
  Gang& gang = step.gangs[static_cast<size_t>(unit.gang)];
  gang.seconds = gang.reports == 0 ? report.elapsed_s : std::min(gang.seconds, report.elapsed_s);
  gang.compute_s = std::max(gang.compute_s, report.seconds);
  ++gang.reports;
  if (gang.reports < std::ssize(gang.plan.workers)) return;
  if (gang.plan.reason == GangReason::link_check) {
    link_checks_.observe(gang.plan.exchange_s, std::max(0.0, gang.seconds - gang.compute_s));
  }
  gangs_.observe(gang.plan, gang.seconds, gang.compute_s);
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

/// Cost that one worker does in a second, the mean of all.
double Ledger::mean_speed() const {
  const UnitSize full{.tokens = static_cast<double>(options_.unit_tokens), .area = 0};
  double speed = 0;
  for (int64_t worker = 0; worker < options_.workers; ++worker) {
    speed += costs_.cost(full) / costs_.seconds(worker, full);
  }
  return speed / static_cast<double>(options_.workers);
}

void Ledger::commit_complete_steps(double now_s) {
  for (auto found = steps_.find(run_.committed); found != steps_.end(); found = steps_.find(run_.committed)) {
    OpenStep& step = found->second;
    const bool computed = step.units_computed == static_cast<int64_t>(step.units.size());
    if (!computed || !std::all_of(step.complete.begin(), step.complete.end(), [](bool c) { return c; })) return;
    StepResult result{.step = run_.committed, .epoch = step.epoch, .staleness_counts = step.staleness_counts};
    int64_t chosen = 0;  // because the step ends earlier
    for (const Gang& gang : step.gangs) {
      ++result.gangs;
      if (gang.plan.reason == GangReason::memory) ++result.required_gangs;
      if (gang.plan.reason == GangReason::ends_earlier) ++chosen;
      result.gang_members += std::ssize(gang.plan.workers);
    }
    for (const auto& [number, unit] : step.units) {  // in unit order, so that equal units give equal bits
      result.nats += unit.nats;
      result.tokens += unit.tokens;
    }
    if (result.tokens != step.target_tokens) {
      throw Error(fmt::format("step {} trained {} target tokens, but the data order has {}", run_.committed,
                              result.tokens, step.target_tokens));
    }
    if (tries_splitting() && costs_.knows_seconds()) {
      const double speed = mean_speed();
      trial_.committed(run_.committed, step.cost / speed, step.longest_cost / speed, chosen, now_s);
      link_checks_.advance(now_s);
    }
    finished_steps_.push_back(std::move(result));
    steps_.erase(found);
    run_.free.erase(run_.committed);
    run_.committed_at[run_.committed] = now_s;
    run_.committed_at.erase(run_.committed - 1 - options_.staleness - options_.lookahead);
    ++run_.committed;
    advance_phase(now_s);
  }
}

void Ledger::group_evaluated(const EvaluationReport& report, double now_s) {
  if (report.unit < 0 || report.unit >= static_cast<int64_t>(groups_leased_)) {
    throw Error(fmt::format("validation group {} was reported, but it is not leased", report.unit));
  }
  std::optional<EvaluationReport>& group = groups_[static_cast<size_t>(report.unit)];
  if (group.has_value()) throw Error(fmt::format("validation group {} was reported twice", report.unit));
  group = report;
  advance_phase(now_s);
}

int64_t Ledger::step_tokens(int64_t step) const {
  const auto found = steps_.find(step);
  if (found == steps_.end()) throw Error(fmt::format("step {} was asked for, but it is not open in the ledger", step));
  return found->second.target_tokens;
}

std::vector<int64_t> Ledger::missing_completions() const {
  std::vector<int64_t> missing;
  const auto step = steps_.find(run_.committed);
  if (step == steps_.end()) return missing;
  for (size_t number = 0; number < step->second.complete.size(); ++number) {
    if (!step->second.complete[number]) missing.push_back(static_cast<int64_t>(number));
  }
  return missing;
}

std::vector<StepResult> Ledger::take_steps() { return std::exchange(finished_steps_, {}); }
std::vector<EvaluationResult> Ledger::take_evaluations() { return std::exchange(finished_evaluations_, {}); }

}  // namespace hat
