#include "hat/worker/worker.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <span>

#include "hat/comm/backoff.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "hat/core/proc.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/device/cuda.hpp"
#include "hat/device/gpu_counter.hpp"
#include "hat/gradient/planted_noise.hpp"
#include "hat/kernels/operations.hpp"
#include "worker/device_parameters.hpp"
#include "worker/emulated_device.hpp"
#include "worker/gang_exchange.hpp"
#include "worker/gradient_sender.hpp"
#include "worker/lease_desk.hpp"
#include "worker/parameter_cache.hpp"
#include "worker/staleness_guard.hpp"
#include "worker/worker_trace.hpp"

namespace hat {

namespace {

std::vector<std::string> block_names(const RunPlan& plan) {
  std::vector<std::string> names;
  for (const BlockSpec& block : plan.layout.blocks) names.push_back(block.name);
  return names;
}

/// What a pass reads of the host outlives it, whatever ends it.
struct EndOfPass {
  const Stream& stream;
  ~EndOfPass() {
    try {
      stream.synchronize();
    } catch (const std::exception&) {  // the pass has told it, or ends with something else
    }
  }
};

/// Where a worker on `world_rank` reads parameters from that it did not pull into memory of its own.
std::span<std::byte> shared_parameters(const RunPlan& plan, int world_rank, const Window& window,
                                       const NodeSlots* node_slots) {
  if (node_slots != nullptr) return node_slots->memory();
  const std::vector<int>& servers = plan.roles.rank_of_server;
  const auto own = std::find(servers.begin(), servers.end(), world_rank);
  if (own == servers.end()) return {};
  return {window.local(), static_cast<size_t>(plan.slots.window_bytes[static_cast<size_t>(own - servers.begin())])};
}

}  // namespace

// The loop of a worker. It is also the observer of its own passes: there it waits for parameters at their first use and
// sends gradients as soon as the backward pass leaves a block.
struct Worker::Impl : PassObserver {
  Impl(const RunPlan& run_plan, int worker_number, const Dataset& dataset, const Communicator& world,
       const Communicator& workers, NcclCommunicator* nccl, const Window& window, const NodeSlots* node_slots,
       std::function<void()> beside_it, Sampler sample, int64_t resident_bytes_before, TraceRecorder* recorder,
       EnergyCounter* counter)
      : plan(run_plan),
        worker(worker_number),
        beside(std::move(beside_it)),
        sampler(std::move(sample)),
        resident_before(resident_bytes_before),
        energy(counter),
        trace(recorder, block_names(plan)),
        compute(plan.compute.device_at(plan.device_of(worker)), "compute"),
        mailbox(world, MailTag::to_worker),
        waiting(fmt::format("worker {}", worker), plan.deck.timeout_s, account, [this] { progress(); }),
        barriers(plan),
        leases(plan, worker, dataset, mailbox, waiting, barriers),
        cache(plan, world.rank(), compute.device(), window, node_slots, waiting),
        on_device(plan, compute, shared_parameters(plan, world.rank(), window, node_slots)),
        sender(plan, compute, worker, mailbox, workers, nccl, waiting, barriers),
        guard(plan, window, waiting),
        gang(plan, workers, waiting, account),
        exchange_trace(recorder),
        model(plan.deck.model, plan.compute, compute),
        parameters(plan.layout.blocks.size(), nullptr),
        versions_used(plan.layout.blocks.size(), 0),
        closed_step(plan.first_step),
        block_waits(plan.layout.blocks.size(), 0.0) {
    if (plan.counts_device_of(worker)) {
      gpu.emplace(cuda::visible_devices().devices.at(static_cast<size_t>(compute.device().index)).id);
    }
    cache.set_trace(&trace);
    cache.set_before_pull([this](int64_t block) { on_device.wait(block); });
    sender.set_trace(recorder);
    if (plan.deck.emulation.device.on()) {
      emulated = std::make_unique<EmulatedDevice>(plan.deck.emulation.device, ChargedCost(plan.deck), plan.deck.seed,
                                                  worker, waiting);
    }
    for (size_t block = 0; block < parameters.size(); ++block) {
      gradients.push_back(sender.buffer(static_cast<int64_t>(block)));
    }
  }

  void run();
  LeasedWork next_work();
  void train(LeasedWork& work);
  void begin_gang(const GangRange& range);
  void tell_what_was_computed(const PackedBatch& batch);
  void evaluate(LeasedWork& work);
  void close_steps_before(int64_t step);
  void say_goodbye(int64_t end_step);
  void progress();
  void tell_of_signal();
  void say_alive(bool computes);
  void read_energy();
  AccountReading account_reading();

  void before_forward(int64_t block) override;
  void before_backward() override;
  void after_backward(int64_t block) override;
  void wait_for(const Stream& stream) override;

  ParameterCache::Need need(int64_t block, const Lease& lease) const;
  double computed_seconds();
  void copy_ahead();
  void ask_ahead();
  void take_answers(bool wait);
  void look_for_next_lease(bool wait);
  void prefetch(const Lease& lease);
  void expect_next_step(int64_t block);
  bool is_single(int64_t block) const;
  bool ends_step(const Lease& lease) const;
  void send_block(int64_t block);
  void send_left();
  void send_all_clipped();
  double gradient_norm(int64_t first_block, int64_t end_block);

  const RunPlan& plan;
  int worker;
  std::function<void()> beside;
  Sampler sampler;
  int64_t resident_before;
  EnergyCounter* energy;  // null: another worker of the node reads it
  double energy_read_s = 0;
  std::optional<GpuCounter> gpu;  // of a worker on a CUDA device, of the first where several share it
  double gpu_read_s = 0;
  WorkerTrace trace;
  Stream compute;
  Account account;
  Mailbox mailbox;
  Waiting waiting;
  BarrierSchedule barriers;
  LeaseDesk leases;
  ParameterCache cache;
  DeviceParameters on_device;
  GradientSender sender;
  StalenessGuard guard;
  GangExchange gang;
  TraceRecorder* exchange_trace;
  Transformer model;
  ParameterPointers parameters;
  GradientPointers gradients;
  std::unique_ptr<EmulatedDevice> emulated;  // null: this machine's own speed

  // The unit being computed.
  Lease current;
  std::deque<LeasedWork> upcoming;  // leased and prefetched, not begun: prefetch.depth of them
  int64_t unit_tokens = 0;
  std::vector<int64_t> versions_used;  // by block
  bool next_is_known = false;          // the lease after it is here
  bool last_of_step = false;           // of this worker, as far as is known
  int64_t left = 0;                    // the backward pass has left the blocks from this one on
  int64_t unsent = 0;                  // of those, blocks up to this one wait for `next_is_known`
  bool in_backward = false;            // of the unit
  bool recomputing = false;            // the unit is computed again (staleness.over_limit)
  int64_t closed_step;                 // everything of the steps before is pushed, and their rings are entered
  double previous_norm = -1;           // unbounded, clip = previous: of this worker's last gradient

  int64_t trained_tokens = 0;
  int64_t trained_units = 0;

  double begin_s = 0;  // of the account
  double alive_s = 0;  // when it last said that it is there
  bool told_of_signal = false;
  std::vector<double> block_waits;  // seconds, by block
};

void Worker::Impl::progress() {
  tell_of_signal();
  // Beside an emulated device.
  say_alive(/*computes=*/account.current() == Activity::compute || (emulated && emulated->stands_still()));
  if (beside) {
    const ActivityScope scope(account, Activity::other);
    beside();
  }
  leases.progress();
  if (emulated && leases.run_stops()) emulated->end_soon();
  cache.progress();
  copy_ahead();
  sender.progress();
  gang.advance();
  account.set_ring_gathering(sender.ring_gathers());
  read_energy();
}

// What has come for the next unit goes on to the device while that computes.
void Worker::Impl::copy_ahead() {
  if (on_device.on_host()) return;
  for (int64_t block = 0; block < std::ssize(parameters); ++block) {
    if (const auto come = cache.arrived(block)) {
      on_device.bring_ahead(block, come->values, come->version, come->predicted);
    }
  }
}

void Worker::Impl::tell_of_signal() {
  if (told_of_signal || stop_signal() == 0) return;
  told_of_signal = true;
  const MpiScope mpi(account);
  mailbox.post(StopRequest{.rank = mailbox.communicator().rank(), .signal = stop_signal()},
               plan.roles.rank_of_server[0], MailTag::to_server);
}

// Server 0 hears nothing else of a worker that computes a long unit, and must not take it for dead.
void Worker::Impl::say_alive(bool computes) {
  const double now = now_s();
  if (now - alive_s < alive_every_s(plan.deck)) return;
  alive_s = now;
  const MpiScope mpi(account);
  mailbox.post(Alive{.computes = computes, .waits_for = waiting.waits_for(), .waits_s = waiting.waits_s()},
               plan.roles.rank_of_server[0], MailTag::to_server);
}

// In training and validation, and while something is waited for: counters run over after some minutes.
void Worker::Impl::read_energy() {
  constexpr double kEvery_s = 30;
  constexpr double kGpuEvery_s = 1;  // what its utilization is of
  if (gpu && now_s() - gpu_read_s >= kGpuEvery_s) {
    gpu->update();
    gpu_read_s = now_s();
  }
  if (energy == nullptr || now_s() - energy_read_s < kEvery_s) return;
  energy->update();
  energy_read_s = now_s();
}

void Worker::Impl::run() {
  account.begin();
  begin_s = now_s();
  trace.follow(account, plan.first_step);
  LeasedWork work = next_work();
  while (work.lease.kind != LeaseKind::finish) {
    switch (work.lease.kind) {
      case LeaseKind::train:
        train(work);
        break;
      case LeaseKind::evaluate:
        evaluate(work);
        break;
      case LeaseKind::none:
      case LeaseKind::finish:
        close_steps_before(work.lease.step);
        break;
    }
    work = next_work();
  }
  close_steps_before(work.lease.step);
  say_goodbye(work.lease.step);
}

LeasedWork Worker::Impl::next_work() {
  if (upcoming.empty()) {
    if (leases.asked() == 0) {
      cache.stop_expecting();
      leases.ask(/*idle=*/true, closed_step);
    }
    take_answers(/*wait=*/true);
  }
  LeasedWork work = std::move(upcoming.front());
  upcoming.pop_front();
  return work;
}

void Worker::Impl::ask_ahead() {
  while (std::ssize(upcoming) + leases.asked() < plan.deck.prefetch_depth) leases.ask(/*idle=*/false, closed_step);
}

void Worker::Impl::take_answers(bool wait) {
  while (leases.asked() > 0 && (wait || leases.has_answer())) {
    upcoming.push_back(leases.take());
    const LeaseKind kind = upcoming.back().lease.kind;
    if (plan.deck.prefetch_depth == 0) continue;  // pulled when it is needed
    if (kind == LeaseKind::train || kind == LeaseKind::evaluate) {
      prefetch(upcoming.back().lease);
    } else {
      cache.stop_expecting();
    }
  }
}

/// Of all units so far; of an emulated device what it needed, even if this machine was late.
double Worker::Impl::computed_seconds() {
  return emulated ? emulated->seconds() : account.seconds()[static_cast<size_t>(Activity::compute)];
}

// One unit: lease -> pull -> forward -> backward -> push.
void Worker::Impl::train(LeasedWork& work) {
  close_steps_before(work.lease.step);
  current = work.lease;
  trace.set_unit(account, current.step, current.unit);
  const PackedBatch batch = leases.text_of(work);
  unit_tokens = static_cast<int64_t>(batch.targets.size());
  const double computed_before = computed_seconds();
  const double begin_s = now_s();
  const double waited_before = account.waited_for_parameters();
  RangeExchange* exchange = batch.range ? &gang : nullptr;
  const EndOfPass end{compute};
  LossSum loss;
  {
    const ActivityScope scope(account, Activity::compute);
    do {
      if (recomputing) sender.discard();
      if (batch.range) begin_gang(*batch.range);
      if (emulated) {
        batch.range ? emulated->begin_unit(current.unit, *batch.range)
                    : emulated->begin_unit(current.unit, batch.offsets);
      }
      loss = model.gradient(batch, parameters, gradients, *this, exchange);
      in_backward = false;
    } while ((recomputing = guard.must_recompute()));
  }
  if (!std::isfinite(loss.nats)) {
    throw Error(
        fmt::format("the loss of unit {} of step {} is not a number: the learning rate may be too high, or "
                    "the start values too large",
                    current.unit, current.step));
  }
  if (plan.deck.log.payload == LogPayload::metadata) tell_what_was_computed(batch);
  const int64_t recomputed = guard.finish_unit();
  mailbox.post(UnitReport{.worker = worker,
                          .unit = current.unit,
                          .generation = current.generation,
                          .step = current.step,
                          .nats = loss.nats,
                          .tokens = loss.tokens,
                          .seconds = (computed_seconds() - computed_before) / static_cast<double>(1 + recomputed),
                          .elapsed_s = now_s() - begin_s - (account.waited_for_parameters() - waited_before),
                          .recomputed = recomputed,
                          .account = account_reading()},
               plan.roles.rank_of_server[0], MailTag::to_server);
  look_for_next_lease(/*wait=*/true);
  if (plan.deck.prefetch_depth == 0) sender.finish();  // nothing goes on beside computing
  if (plan.unbounded()) send_all_clipped();
  if (last_of_step) closed_step = current.step + 1;
  trained_tokens += unit_tokens;
  ++trained_units;
}

void Worker::Impl::tell_what_was_computed(const PackedBatch& batch) {
  ComputedUnit computed{.worker = worker,
                        .unit = current.unit,
                        .generation = current.generation,
                        .step = current.step,
                        .tokens = unit_tokens,
                        .bounds = {},
                        .versions = versions_used,
                        .sequences = current.sequences};
  if (batch.range) {
    computed.member = batch.range->member;
    computed.bounds = batch.range->bounds;
  }
  mailbox.post(computed, plan.roles.rank_of_server[0], MailTag::to_server);
}

void Worker::Impl::begin_gang(const GangRange& range) {
  std::vector<int64_t> members;
  for (const GangMember& member : current.gang) members.push_back(member.worker);
  gang.begin(range, members, emulated.get(), exchange_trace, current.step, current.unit);
}

// All workers of a gang compute on the same versions, which freshest ones may not be.
// Validation is of version `step` of every block; unbounded, where versions do not belong to steps, of the newest:
// nothing is in flight then.
ParameterCache::Need Worker::Impl::need(int64_t block, const Lease& lease) const {
  if (plan.unbounded()) return {.version = guard.oldest_version(block), .rule = SlotPull::Rule::freshest};
  if (lease.kind == LeaseKind::evaluate) return {.version = lease.step, .rule = SlotPull::Rule::exact};
  const bool freshest = plan.deck.staleness_rule == StalenessRule::freshest && lease.gang.empty() &&
                        !barriers.is_barrier(block, lease.step);
  return {.version = barriers.oldest_version(block, lease.step),
          .rule = freshest ? SlotPull::Rule::freshest : SlotPull::Rule::exact,
          .predicted = barriers.is_predicted(block, lease.step)};
}

// Under the rule freshest a copy that is already here would do, however old; a pull that was started brings the newest.
void Worker::Impl::prefetch(const Lease& lease) {
  const MpiScope mpi(account);
  for (int64_t block = 0; block < static_cast<int64_t>(parameters.size()); ++block) {
    guard.asked_ahead(block);
    cache.prefetch(block, need(block, lease));
  }
}

// The next lease is asked for in the middle of the forward pass: early enough to be there before the backward pass, and
// late enough that server 0 knows how the others get on.
void Worker::Impl::before_forward(int64_t block) {
  if (emulated) emulated->before_forward(block);
  if (2 * block >= std::ssize(parameters) && current.kind == LeaseKind::train) ask_ahead();
  say_alive(/*computes=*/true);
  waiting.progress();
  guard.asked(block);
  const double waited_before = account.waited_for_parameters();
  const ParameterCache::Need wanted = need(block, current);
  const float* values = cache.acquire(block, wanted);
  block_waits[static_cast<size_t>(block)] += account.waited_for_parameters() - waited_before;
  const int64_t version = cache.version(block);
  parameters[static_cast<size_t>(block)] = on_device.bring(block, values, version, wanted.predicted);
  versions_used[static_cast<size_t>(block)] = version;
  guard.took(block, version);
  expect_next_step(block);
  trace.forward_begins(block, version);
}

// The next step of the data will most likely have a unit for this worker, whichever it is. What late blocks need for it
// is published already, or soon; what barrier blocks need is not before this worker has pushed its last gradient. Which
// blocks these are is chosen with the first lease of a step (barriers = sensitivity): until then, most likely the same.
void Worker::Impl::expect_next_step(int64_t block) {
  if (current.kind != LeaseKind::train || plan.unbounded() || plan.deck.staleness_rule != StalenessRule::exact) return;
  const int64_t next = current.step + 1;
  if (next == plan.end_step || barriers.is_barrier(block, barriers.knows(next) ? next : current.step)) return;
  const int64_t version = plan.oldest_version(block, next);
  if (version == next) return;
  cache.expect(block, {.version = version, .rule = SlotPull::Rule::exact, .predicted = plan.deck.delay.predict});
}

void Worker::Impl::before_backward() {
  fault_point(FaultPoint::compute);
  trace.pass_ends();
  const auto head = static_cast<int64_t>(parameters.size()) - 1;
  left = head + 1;
  unsent = head;
  in_backward = true;
  if (!recomputing) next_is_known = last_of_step = false;
  look_for_next_lease(/*wait=*/false);
  sender.begin(head);
  if (plan.deck.model.tied) sender.begin(0);  // the head's backward pass adds to it
  trace.backward_begins();
}

// Whether a unit is the worker's last of the step shows the lease after it. Until that is here, at the latest after the
// backward pass, the pass goes on; then the gradients of the blocks that it has left go out at once.
void Worker::Impl::look_for_next_lease(bool wait) {
  if (!next_is_known) {
    if (wait && upcoming.empty() && leases.asked() == 0) leases.ask(/*idle=*/false, closed_step);  // prefetch.depth = 0
    take_answers(wait);
    next_is_known = !upcoming.empty();
    last_of_step = next_is_known && ends_step(upcoming.front().lease);
  }
  send_left();
}

bool Worker::Impl::ends_step(const Lease& lease) const {
  return lease.kind != LeaseKind::train || lease.step > current.step;
}

/// Every unit's gradient of this block is pushed by itself.
bool Worker::Impl::is_single(int64_t block) const {
  return plan.pushes_single_units() && !barriers.uses_ring(block, current.step);
}

void Worker::Impl::send_block(int64_t block) {
  plant_noise(plan, block, current.step, current.unit,
              {gradients[static_cast<size_t>(block)],
               static_cast<size_t>(plan.layout.blocks[static_cast<size_t>(block)].size)});
  // Unbounded pushes wait for the norm of the whole gradient (send_all_clipped).
  if (plan.unbounded()) return;
  sender.sketch(block, current.step, current.order);
  const MpiScope mpi(account);
  sender.send(block, current.step, current.generation, current.order, /*norm=*/-1.0);
}

void Worker::Impl::send_left() {
  if (!last_of_step) return;
  for (; unsent >= left; --unsent) {
    if (!is_single(unsent)) send_block(unsent);
  }
}

void Worker::Impl::after_backward(int64_t block) {
  if (emulated) emulated->after_backward(block);
  trace.backward_ends(block);
  sender.note_unit(block, current.unit, cache.version(block), unit_tokens);
  left = block;
  if (is_single(block)) send_block(block);
  look_for_next_lease(/*wait=*/false);
  if (block > 0) sender.begin(block - 1);
  say_alive(/*computes=*/true);
  waiting.progress();
}

// An accelerator computes on while messages come and go, and what the pass has left goes out when it is there.
void Worker::Impl::wait_for(const Stream& stream) {
  Backoff backoff;
  while (!stream.is_done()) {
    if (in_backward) look_for_next_lease(/*wait=*/false);
    waiting.progress_beside_device();
    backoff.pause();
  }
}

double Worker::Impl::gradient_norm(int64_t first_block, int64_t end_block) {
  const Operations& ops = operations(compute.device().kind);
  const int64_t blocks = end_block - first_block;
  DeviceBuffer<double> sums(compute.device(), blocks);
  for (int64_t i = 0; i < blocks; ++i) {
    const auto block = static_cast<size_t>(first_block + i);
    ops.sum_of_squares(compute, plan.layout.blocks[block].size, gradients[block], sums.data() + i);
  }
  std::vector<double> parts(static_cast<size_t>(blocks));
  copy_to_host(compute, sums.data(), parts.data(), blocks);
  compute.synchronize();
  double sum = 0;
  for (const double part : parts) sum += part;
  return std::sqrt(sum) / static_cast<double>(unit_tokens);
}

// One update per push: the servers clip by a norm that only the worker knows, so pushes leave after the backward pass.
void Worker::Impl::send_all_clipped() {
  const auto blocks = static_cast<int64_t>(parameters.size());
  const double whole = gradient_norm(0, blocks);
  if (!std::isfinite(whole)) {  // as servers refuse it where they add pushes up
    throw Error(fmt::format("the loss has diverged: the gradient of unit {} of step {} is not a number", current.unit,
                            current.step));
  }
  for (int64_t block = blocks - 1; block >= 0; --block) {
    double norm = -1.0;
    switch (plan.deck.clip.rule) {
      case ClipRule::none:
        break;
      case ClipRule::global:
        norm = whole;
        break;
      case ClipRule::previous:
        norm = previous_norm < 0 ? whole : previous_norm;
        break;
      case ClipRule::block:
        norm = gradient_norm(block, block + 1);
        break;
    }
    sender.sketch(block, current.step, current.order);
    sender.send(block, current.step, current.generation, current.order, norm, guard.age_s(block));
  }
  previous_norm = whole;
}

void Worker::Impl::close_steps_before(int64_t step) {
  for (; closed_step < step; ++closed_step) {
    if (barriers.has_rings(closed_step)) sender.enter_rings_with_zeros(closed_step);
  }
}

void Worker::Impl::evaluate(LeasedWork& work) {
  current = work.lease;
  trace.set_unit(account, current.step, -1);
  const PackedBatch batch = leases.text_of(work);
  // Only the parameters are waited for in this pass.
  struct Observer : PassObserver {
    explicit Observer(Impl& owner) : worker(owner) {}
    void before_forward(int64_t block) override { worker.before_forward(block); }
    void wait_for(const Stream& stream) override { worker.wait_for(stream); }
    Impl& worker;
  } observer(*this);
  ask_ahead();  // who gets which group does not depend on how the others get on
  const EndOfPass end{compute};
  const ActivityScope scope(account, Activity::compute);
  const LossSum loss = model.loss(batch, parameters, observer);
  trace.pass_ends();
  mailbox.post(EvaluationReport{.unit = current.unit, .nats = loss.nats, .tokens = loss.tokens},
               plan.roles.rank_of_server[0], MailTag::to_server);
  if (emulated) emulated->resume();
}

AccountReading Worker::Impl::account_reading() {
  AccountReading reading = account.reading();
  reading.block_wait_seconds = block_waits;
  return reading;
}

void Worker::Impl::say_goodbye(int64_t end_step) {
  sender.finish();
  waiting.until(Activity::wait_gang, "keys and values to leave", [this] { return gang.is_idle(); });
  cache.finish();
  WorkerSummary summary{.worker = worker, .account = account_reading()};
  summary.wall_seconds = now_s() - begin_s;
  account.set_listener({});
  if (energy != nullptr) {
    energy->update();
    summary.node_joules = energy->joules().value_or(-1.0);
  }
  if (gpu) {
    gpu->update();
    summary.device_joules = gpu->joules().value_or(-1.0);
    summary.device_utilization = gpu->utilization().value_or(-1.0);
  }
  summary.tokens = trained_tokens;
  summary.units = trained_units;
  summary.pulls = cache.counters().accepted;
  summary.pulls_rejected = cache.counters().rejected;
  summary.pulled_bytes = cache.counters().bytes;
  summary.pulls_skipped = cache.counters().skipped;
  summary.skipped_bytes = cache.counters().skipped_bytes;
  summary.prefetches = cache.counters().guesses;
  summary.wrong_prefetches = cache.counters().wrong_guesses;
  summary.pushed_bytes = sender.pushed_bytes();
  summary.exchanged_bytes = gang.sent_bytes();
  summary.resident_before = resident_before;
  summary.peak_resident = peak_resident_bytes();
  summary.shared_resident = shared_resident_bytes();
  if (emulated) {
    summary.emulated_s = emulated->busy_seconds();
    summary.mean_lag_s = emulated->lag().mean_s;
    summary.worst_lag_s = emulated->lag().worst_s;
  }
  if (worker == 0 && sampler && !leases.run_stops()) {
    current = {.kind = LeaseKind::evaluate, .step = end_step};
    prefetch(current);
    for (int64_t block = 0; block < static_cast<int64_t>(parameters.size()); ++block) before_forward(block);
    summary.sample = sampler(model, parameters, [this] {
      say_alive(/*computes=*/true);
      progress();
      return !leases.run_stops();
    });
  }
  alive_s = std::numeric_limits<double>::infinity();  // its last word
  mailbox.post(summary, plan.roles.rank_of_server[0], MailTag::to_server);
  waiting.until(Activity::other, "the summary to leave", [this] { return mailbox.flush(); });
}

Worker::Worker(const RunPlan& plan, int worker, const Dataset& dataset, const Communicator& world,
               const Communicator& workers, NcclCommunicator* nccl, const Window& window, const NodeSlots* node_slots,
               std::function<void()> beside, Sampler sampler, int64_t resident_before, TraceRecorder* trace,
               EnergyCounter* energy)
    : impl_(std::make_unique<Impl>(plan, worker, dataset, world, workers, nccl, window, node_slots, std::move(beside),
                                   std::move(sampler), resident_before, trace, energy)) {}
Worker::~Worker() = default;

void Worker::run() { impl_->run(); }

}  // namespace hat
