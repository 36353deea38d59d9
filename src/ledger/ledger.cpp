#include "hat/ledger/ledger.hpp"

#include <algorithm>
#include <utility>

#include "hat/core/error.hpp"

namespace hat {

std::vector<std::vector<Sequence>> pack_units(std::vector<Sequence> sequences, int64_t unit_tokens) {
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Sequence& a, const Sequence& b) { return a.length > b.length; });
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
      phase_(Phase::training),
      pause_(options.first_step),  // the first pause: validation before training
      committed_(options.first_step) {
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

Ledger::OpenStep& Ledger::open_step(int64_t step) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) return found->second;
  const Step& plan = order_.step(step);
  OpenStep& open = steps_[step];
  open.epoch = plan.epoch;
  open.target_tokens = plan.target_tokens;
  open.server_complete.assign(static_cast<size_t>(options_.servers), false);
  const bool own_queues = options_.deterministic || options_.dispatch == Dispatch::static_;
  const auto workers = static_cast<size_t>(options_.workers);
  open.free_units.resize(own_queues ? workers : 1);
  const auto add = [&](const std::vector<Sequence>& sequences, size_t queue) {
    for (std::vector<Sequence>& unit : pack_units(sequences, options_.unit_tokens)) {
      open.free_units[queue].push_back(static_cast<int64_t>(open.units.size()));
      open.units.push_back({.number = next_unit_++, .sequences = std::move(unit)});
    }
  };
  if (options_.dispatch == Dispatch::static_) {
    // Disjoint subsets of equal counts, whatever their lengths: sequence i is worker i's (mod workers).
    for (size_t worker = 0; worker < workers; ++worker) {
      std::vector<Sequence> own;
      for (size_t i = worker; i < plan.sequences.size(); i += workers) own.push_back(plan.sequences[i]);
      add(own, worker);
    }
  } else if (own_queues) {
    const std::vector<std::vector<Sequence>> units = pack_units(plan.sequences, options_.unit_tokens);
    for (size_t i = 0; i < units.size(); ++i) add(units[i], i % workers);
  } else {
    add(plan.sequences, 0);
  }
  return open;
}

Lease Ledger::next(int64_t worker) {
  switch (phase_) {
    case Phase::training:
      return lease_training(worker);
    case Phase::evaluating:
      return lease_evaluation();
    case Phase::finished:
      break;
  }
  return {.kind = LeaseKind::finish, .step = options_.end_step};
}

Lease Ledger::lease_training(int64_t worker) {
  const int64_t limit = std::min(pause_, committed_ + options_.lookahead);
  for (int64_t step = committed_; step < limit; ++step) {
    OpenStep& open = open_step(step);
    std::deque<int64_t>& queue = open.free_units[open.free_units.size() == 1 ? 0 : static_cast<size_t>(worker)];
    if (queue.empty()) continue;
    const int64_t index = queue.front();
    queue.pop_front();
    Unit& unit = open.units[static_cast<size_t>(index)];
    unit.state = UnitState::leased;
    return {.kind = LeaseKind::train,
            .unit = unit.number,
            .generation = 1,
            .step = step,
            .order = index,
            .sequences = unit.sequences};
  }
  return {.kind = LeaseKind::none, .step = limit};
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
  if (found != steps_.end() && !found->second.units.empty()) {
    const int64_t index = number - found->second.units.front().number;
    if (index >= 0 && index < static_cast<int64_t>(found->second.units.size())) {
      return found->second.units[static_cast<size_t>(index)];
    }
  }
  throw Error(fmt::format("unit {} of step {} was reported, but the ledger has no such unit open", number, step));
}

void Ledger::unit_computed(const UnitReport& report) {
  Unit& unit = unit_of(report.step, report.unit);
  if (unit.state != UnitState::leased) {
    throw Error(fmt::format("unit {} of step {} was reported twice", report.unit, report.step));
  }
  unit.state = UnitState::computed;
  unit.nats = report.nats;
  unit.tokens = report.tokens;
  ++steps_.at(report.step).units_computed;
  commit_complete_steps();
}

void Ledger::server_completed_step(const StepComplete& message) {
  const auto found = steps_.find(message.step);
  if (found == steps_.end() || message.server < 0 || message.server >= options_.servers) {
    throw Error(fmt::format("server {} completed step {}, but the ledger has no such server or step open",
                            message.server, message.step));
  }
  OpenStep& step = found->second;
  const auto server = static_cast<size_t>(message.server);
  if (step.server_complete[server]) {
    throw Error(fmt::format("server {} completed step {} twice", message.server, message.step));
  }
  step.server_complete[server] = true;
  if (message.staleness_counts.size() > step.staleness_counts.size()) {
    step.staleness_counts.resize(message.staleness_counts.size(), 0);
  }
  for (size_t s = 0; s < message.staleness_counts.size(); ++s) step.staleness_counts[s] += message.staleness_counts[s];
  commit_complete_steps();
}

void Ledger::commit_complete_steps() {
  for (auto found = steps_.find(committed_); found != steps_.end(); found = steps_.find(committed_)) {
    OpenStep& step = found->second;
    const bool computed = step.units_computed == static_cast<int64_t>(step.units.size());
    if (!computed || !std::all_of(step.server_complete.begin(), step.server_complete.end(), [](bool c) { return c; })) {
      return;
    }
    StepResult result{.step = committed_, .epoch = step.epoch, .staleness_counts = step.staleness_counts};
    for (const Unit& unit : step.units) {  // in unit order, so that equal units give equal bits
      result.nats += unit.nats;
      result.tokens += unit.tokens;
    }
    if (result.tokens != step.target_tokens) {
      throw Error(fmt::format("step {} trained {} target tokens, but the data order has {}", committed_, result.tokens,
                              step.target_tokens));
    }
    finished_steps_.push_back(std::move(result));
    steps_.erase(found);
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

std::vector<int64_t> Ledger::servers_behind() const {
  std::vector<int64_t> servers;
  const auto step = steps_.find(committed_);
  if (step == steps_.end()) return servers;
  for (size_t server = 0; server < step->second.server_complete.size(); ++server) {
    if (!step->second.server_complete[server]) servers.push_back(static_cast<int64_t>(server));
  }
  return servers;
}

std::vector<StepResult> Ledger::take_steps() { return std::exchange(finished_steps_, {}); }
std::vector<EvaluationResult> Ledger::take_evaluations() { return std::exchange(finished_evaluations_, {}); }

}  // namespace hat
