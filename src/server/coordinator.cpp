#include "server/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/core/clock.hpp"
#include "hat/model/charged_cost.hpp"
#include "hat/optimizer/schedule.hpp"
#include "hat/server/checkpoint_slices.hpp"

namespace hat {

namespace {

// A validation group is as long as a training unit, for which workers have the memory.
std::vector<std::vector<Sequence>> validation_of(const RunPlan& plan, const Dataset& dataset) {
  return validation_groups(dataset, plan.deck.model.max_length, plan.deck.unit_tokens, plan.deck.eval.tokens);
}

// Where sketches are recorded, the last of them completes a step as servers do: the completion behind theirs.
int64_t sketch_completion(const RunPlan& plan) { return plan.roles.servers(); }

/// Share of a unit's time, a third of which is the forward pass, that passes before it comes to a barrier block of the
/// plan.
double share_before_barrier(const RunPlan& plan, const ChargedCost& charged) {
  double flop = 0;
  for (size_t block = 0; block < plan.is_barrier.size(); ++block) {
    if (plan.is_barrier[block]) return flop / charged.total().per_token / 3;
    flop += charged.blocks()[block].per_token;
  }
  return 1;
}

GangOptions gang_options(const RunPlan& plan) {
  if (!plan.forms_gangs()) return {};
  const ModelConfig& model = plan.deck.model;
  const GangWire wire = gang_wire(plan);
  const auto bytes = [&](Element element) {
    return exchange_charge(plan) * static_cast<double>(key_value_elements(model) * element_bytes(element));
  };
  return {.policy = plan.deck.gang.policy,
          .max_workers = plan.gang_workers(),
          .forward_bytes = bytes(wire.forward),
          .backward_bytes = bytes(wire.backward),
          .layers = model.layers,
          .least_gang = plan.least_gang,
          .unsplit_tokens = plan.unsplit_tokens,
          .node_of_worker = plan.node_of_worker,
          .links = plan.links};
}

LedgerOptions ledger_options(const RunPlan& plan) {
  constexpr int64_t kUnboundedLookahead = 64;  // only bounds the memory for open steps
  // Shorter units spend their time on messages; of charged tokens, since those are what a device computes.
  constexpr double kLeastUnitTokens = 512;
  const ChargedCost charged(plan.deck);
  const BlockFlop flop = charged.total();
  return {.workers = plan.roles.workers(),
          .completions = plan.roles.servers() + (plan.records_sketches() ? 1 : 0),
          .dispatch = plan.deck.dispatch,
          .unit_tokens = plan.deck.unit_tokens,
          .least_tokens = static_cast<int64_t>(std::ceil(kLeastUnitTokens / plan.deck.emulation.length_scale)),
          .max_delay_s = plan.deck.cutting.max_delay_s,
          .area_weight = flop.per_square / flop.per_token,
          .deterministic = plan.deck.deterministic,
          .first_step = plan.first_step,
          .end_step = plan.end_step,
          .lookahead = plan.unbounded() ? kUnboundedLookahead : plan.deck.staleness + 2,
          .staleness = plan.deck.staleness,
          .sync_steps = plan.deck.delay.sync_steps,
          .before_barrier = share_before_barrier(plan, charged),
          .evaluate_every = plan.deck.eval.every,
          // Without versions that belong to steps, a consistent copy needs a moment at which nothing is in flight.
          .pause_every = plan.unbounded() ? plan.deck.checkpoint.every : 0,
          .gang = gang_options(plan)};
}

/// The checkpoint that a run continues from when its newest one turns out to be damaged; where only one is kept, that.
int64_t oldest_recovery_base(const std::filesystem::path& run, int64_t keep) {
  const std::vector<int64_t> steps = complete_checkpoints(run);
  if (keep == 1) return steps.empty() ? 0 : steps.back();
  return steps.size() < 2 ? 0 : steps[steps.size() - 2];
}

std::string unit_text(int64_t unit, int64_t step) { return fmt::format("unit {} of step {}", unit, step); }
std::string group_text(int64_t group) { return fmt::format("validation group {}", group); }

}  // namespace

Coordinator::Coordinator(const RunPlan& plan, const Dataset& dataset, Mailbox& mailbox,
                         const CheckpointReader* checkpoint)
    : plan_(plan),
      dataset_(dataset),
      mailbox_(mailbox),
      order_(dataset, plan.deck, plan.piece_tokens),
      validation_(validation_of(plan, dataset)),
      ledger_(order_, validation_, ledger_options(plan)),
      sensitivity_(plan, ledger_options(plan).lookahead),
      log_(plan, dataset, validation_),
      last_checkpoint_(checkpoint == nullptr ? plan.first_step - 1 : plan.first_step),
      logged_steps_(plan.deck.log.payload == LogPayload::metadata ? 0 : std::numeric_limits<int64_t>::max()),
      end_step_(plan.end_step),
      time_limit_(plan, now_s()) {
  if (checkpoint == nullptr) return;
  const CheckpointState& state = checkpoint->state();
  tokens_ = state.tokens;
  epoch_ = state.epoch;
  const auto kept = static_cast<int64_t>(state.recent_norms.size());
  for (int64_t i = 0; i < kept; ++i) norms_[state.step - kept + i] = state.recent_norms[static_cast<size_t>(i)];
}

void Coordinator::send_lease(int64_t worker, Lease lease) {
  sensitivity_.tell(worker, lease);
  switch (lease.kind) {
    case LeaseKind::train:
      leased_[worker].push_back(unit_text(lease.unit, lease.step));
      break;
    case LeaseKind::evaluate:
      leased_[worker].push_back(group_text(lease.unit));
      break;
    case LeaseKind::none:
    case LeaseKind::finish:
      break;
  }
  mailbox_.post(lease, plan_.roles.rank_of_worker[static_cast<size_t>(worker)], MailTag::to_worker);
}

void Coordinator::receive(const LeaseRequest& request) {
  const Lease lease = ledger_.next(request.worker, now_s());
  if (request.idle) {
    leased_.erase(request.worker);
    if (lease.kind == LeaseKind::none) {
      // It asks because it was told "none" for this step, or has just begun; it is answered when there is news.
      idle_workers_.try_emplace(request.worker, request.closed_step);
      answer_idle_workers();
      return;
    }
  }
  send_lease(request.worker, lease);
}

void Coordinator::answer_idle_workers() {
  for (auto idle = idle_workers_.begin(); idle != idle_workers_.end();) {
    const Lease lease = ledger_.next(idle->first, now_s());
    if (lease.kind == LeaseKind::none && lease.step <= idle->second) {
      ++idle;
      continue;
    }
    send_lease(idle->first, lease);
    idle = idle_workers_.erase(idle);
  }
}

void Coordinator::receive(const UnitReport& report) {
  std::erase(leased_[report.worker], unit_text(report.unit, report.step));
  log_.unit(report);
  step_blocks_[report.step].recomputed += report.recomputed;
  ledger_.unit_computed(report, now_s());
  after_event();
}

void Coordinator::receive(GradientSketch sketch) {
  const int64_t step = sketch.step;
  if (!sensitivity_.add(std::move(sketch), ledger_.step_tokens(step))) return;
  ledger_.completed(sketch_completion(plan_), step, now_s());
  after_event();
}

void Coordinator::receive(const EvaluationReport& report) {
  for (auto& [worker, leased] : leased_) std::erase(leased, group_text(report.unit));
  ledger_.group_evaluated(report, now_s());
  after_event();
}

void Coordinator::receive(const StepComplete& message) {
  log_.server_completed(message);
  std::vector<int64_t>& over_limit = step_blocks_[message.step].pushes_over_limit;
  over_limit.resize(plan_.layout.blocks.size(), 0);
  for (size_t block = 0; block < message.pushes_over_limit.size(); ++block) {
    over_limit.at(block) += message.pushes_over_limit[block];
  }
  ledger_.server_completed_step(message, now_s());
  after_event();
}

void Coordinator::receive(const NormShare& share) {
  std::map<int64_t, double>& shares = shares_[share.step];
  shares[share.server] = share.sum_of_squares;
  if (static_cast<int>(shares.size()) < plan_.roles.servers()) return;
  double sum = 0;
  for (const auto& [server, value] : shares) sum += value;
  shares_.erase(share.step);
  norms_[share.step] = std::sqrt(sum);
  for (const int rank : plan_.roles.rank_of_server) {
    mailbox_.post(NormTotal{.step = share.step, .norm = std::sqrt(sum)}, rank, MailTag::to_server);
  }
}

void Coordinator::log_steps() {
  for (const StepResult& result : ledger_.take_steps()) {
    const double factor = schedule_factor(plan_.deck.schedule, result.step, plan_.end_step);
    const auto norm = norms_.find(result.step);
    StepBlocks blocks = step_blocks_.extract(result.step).mapped();
    sensitivity_.close(result.step, blocks);
    log_.step(result, factor * plan_.deck.optimizer.learning_rate,
              norm == norms_.end() ? std::numeric_limits<double>::quiet_NaN() : norm->second, blocks);
    tokens_ += result.tokens;
    epoch_ = result.epoch;
    const int64_t done = result.step + 1;
    if (done == end_step_ || checkpoint_due(plan_, done)) {
      positions_[done] = position(done);
      checkpoint_begin_s_[done] = now_s();
    }
    time_limit_.step_done(now_s());
    norms_.erase(norms_.begin(), norms_.lower_bound(result.step - kNormsKept));
  }
}

void Coordinator::after_event() {
  log_steps();
  for (const SplitDecision& decision : ledger_.take_split_decisions()) log_.split_decision(decision);
  for (const EvaluationResult& result : ledger_.take_evaluations()) {
    log_.evaluation(result);
    time_limit_.training_goes_on(now_s());
  }
  answer_idle_workers();
  start_completing_checkpoints();
  end_if_done();
}

void Coordinator::receive(const CheckpointWritten& message) {
  PendingCheckpoint& pending = pending_checkpoints_[message.step];
  pending.block_versions.resize(plan_.layout.blocks.size(), 0);
  for (size_t i = 0; i < message.blocks.size(); ++i) {
    pending.block_versions[static_cast<size_t>(message.blocks[i])] = message.versions[i];
  }
  ++pending.servers;
  pending.cost.longest_copy_s = std::max(pending.cost.longest_copy_s, message.longest_copy_s);
  pending.cost.logged_bytes += message.logged_bytes;
  start_completing_checkpoints();
}

/// `steps`: those committed last.
Coordinator::Position Coordinator::position(int64_t steps) const {
  Position position{.epoch = epoch_, .tokens = tokens_, .recent_norms = {}};
  for (int64_t step = std::max<int64_t>(0, steps - kNormsKept); step < steps; ++step) {
    const auto norm = norms_.find(step);
    if (norm != norms_.end()) position.recent_norms.push_back(norm->second);
  }
  return position;
}

CheckpointState Coordinator::checkpoint_state(int64_t steps, const PendingCheckpoint& pending) {
  const Position position = positions_.extract(steps).mapped();
  CheckpointState state{.step = steps,
                        .epoch = position.epoch,
                        .tokens = position.tokens,
                        .seed = plan_.deck.seed,
                        .block_names = {},
                        .block_versions = pending.block_versions,
                        .recent_norms = position.recent_norms,
                        .deck = plan_.deck_text,
                        .dataset_path = std::filesystem::absolute(dataset_.path()).string(),
                        .dataset_identity = dataset_.identity(),
                        .tokenizer = dataset_.tokenizer().name(),
                        .model = plan_.deck.model};
  for (const BlockSpec& block : plan_.layout.blocks) state.block_names.push_back(block.name);
  return state;
}

void Coordinator::start_completing_checkpoints() {
  for (auto entry = pending_checkpoints_.begin(); entry != pending_checkpoints_.end();) {
    const auto& [steps, pending] = *entry;
    if (pending.servers < plan_.roles.servers() || std::min(ledger_.committed_steps(), logged_steps_) < steps) {
      ++entry;
      continue;
    }
    const std::filesystem::path run = plan_.deck.output;
    checkpoint_costs_[steps] = pending.cost;
    completing_[steps] =
        thread_.submit([run, steps = steps, keep = plan_.deck.checkpoint.keep, log = plan_.deck.log.keep,
                        state = checkpoint_state(steps, pending), slices = slices_of_servers(plan_)] {
          complete_checkpoint(checkpoint_folder(run, steps), state, slices);
          try {
            rotate_checkpoints(run, keep);
            if (log == LogKeep::recovery) prune_log(run, oldest_recovery_base(run, keep));
          } catch (const std::exception& error) {  // old files in the way are no reason to stop training
            fmt::print(stderr, "hat: old checkpoints or logs stay: {}\n", error.what());
          }
          return checkpoint_folder(run, steps);
        });
    entry = pending_checkpoints_.erase(entry);
  }
}

void Coordinator::log_reaches(int64_t steps) {
  if (steps == logged_steps_) return;
  logged_steps_ = steps;
  start_completing_checkpoints();
}

bool Coordinator::progress() {
  bool any = false;
  for (auto entry = completing_.begin(); entry != completing_.end() && is_ready(entry->second);) {
    any = true;
    log_.checkpoint(entry->first, entry->second.get(), checkpoint_costs_.extract(entry->first).mapped());
    last_checkpoint_ = entry->first;
    if (const auto begin = checkpoint_begin_s_.find(entry->first); begin != checkpoint_begin_s_.end()) {
      time_limit_.checkpoint_took(now_s() - begin->second);
    }
    checkpoint_begin_s_.erase(checkpoint_begin_s_.begin(), checkpoint_begin_s_.upper_bound(entry->first));
    entry = completing_.erase(entry);
  }
  if (any) end_if_done();
  stop_in_time();
  if (closing_.valid() && is_ready(closing_)) {
    any = true;
    closing_.get();
    end();
  }
  return any;
}

void Coordinator::receive(const WorkerSummary& summary) {
  leased_.erase(summary.worker);
  WorkerSummary whole = summary;
  const double error = ledger_.cost_model().relative_error(summary.worker);
  if (!std::isnan(error)) whole.unit_time_error = error;
  log_.worker(whole);
  ended_workers_.insert(summary.worker);
  end_if_done();
}

void Coordinator::end_if_done() {
  if (finished_ || closing_.valid() || !ledger_.finished() ||
      static_cast<int>(ended_workers_.size()) < plan_.roles.workers() || last_checkpoint_ < end_step_) {
    return;
  }
  log_.say_summary({.time_error = ledger_.gang_planner().relative_error(),
                    .unsplit_steps = ledger_.split_trial().unsplit_steps(),
                    .unfinished_trial = ledger_.split_trial().unfinished()});
  // The other ranks wait for this one and must hear from it: it goes on while the disk takes its time.
  closing_ = thread_.submit([this] { log_.close_files(); });
}

void Coordinator::abandon() {
  thread_.finish();
  if (!closing_.valid()) log_.close_files();
}

void Coordinator::end() {
  for (int server = 1; server < plan_.roles.servers(); ++server) {
    mailbox_.post(Shutdown{}, plan_.roles.rank_of_server[static_cast<size_t>(server)], MailTag::to_server);
  }
  log_.say_files();
  finished_ = true;
}

// All servers have been told before the first of them hears of anything that comes later: messages between two ranks
// keep their order.
void Coordinator::stop(const std::string& reason) {
  if (told_to_stop_ || finished_ || closing_.valid()) return;
  told_to_stop_ = true;
  StopAt message{.steps = end_step_, .checkpoint = false};
  if (!ledger_.finished()) {
    stop_reason_ = reason;
    end_step_ = message.steps = ledger_.stop();
    log_.stopping(end_step_, reason);
    const int64_t committed = ledger_.committed_steps();
    const bool is_due = end_step_ > plan_.first_step && checkpoint_due(plan_, end_step_);
    message.checkpoint = last_checkpoint_ < end_step_ && !is_due;
    if (message.checkpoint && committed == end_step_) positions_[end_step_] = position(end_step_);
  }
  for (const int rank : plan_.roles.rank_of_server) mailbox_.post(message, rank, MailTag::to_server);
  for (const int rank : plan_.roles.rank_of_worker) mailbox_.post(message, rank, MailTag::to_worker);
  after_event();
}

void Coordinator::stop_in_time() {
  if (told_to_stop_ || !time_limit_.is_set()) return;
  if (time_limit_.is_near(ledger_.steps_under_way(), now_s()))
    stop(fmt::format("time limit ({})", plan_.deadline.source));
}

std::string Coordinator::stall_text() const {
  if (ledger_.finished()) return fmt::format("the end of the run waits for {}", waiting_for());
  return fmt::format("step {} of {} waits for {}", ledger_.committed_steps(), end_step_, waiting_for());
}

std::string Coordinator::waiting_for() const {
  std::string text;
  for (int64_t worker = 0; worker < plan_.roles.workers(); ++worker) {
    const auto leased = leased_.find(worker);
    if (leased != leased_.end() && !leased->second.empty()) {
      text += fmt::format(", worker {} ({})", worker, leased->second.front());
    } else if (!idle_workers_.contains(worker) && !ended_workers_.contains(worker)) {
      text += fmt::format(", worker {} (to ask for work)", worker);  // it holds nothing, but others may wait for it
    }
  }
  for (const auto& [steps, pending] : pending_checkpoints_) text += fmt::format(", the checkpoint of step {}", steps);
  for (const int64_t completion : ledger_.missing_completions()) {
    const std::string what =
        completion == sketch_completion(plan_) ? "gradient sketches of workers" : fmt::format("server {}", completion);
    text += fmt::format(", {} (step {})", what, ledger_.committed_steps());
  }
  if (text.empty()) return fmt::format("step {} to be committed", ledger_.committed_steps());
  return text.substr(2);
}

}  // namespace hat
