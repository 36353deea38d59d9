#include "hat/worker/worker.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "hat/core/error.hpp"
#include "hat/device/cuda.hpp"
#include "worker/worker_impl.hpp"

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

Worker::Impl::Impl(const RunPlan& run_plan, int worker_number, const Dataset& dataset, const Communicator& world,
                   const Communicator& workers, NcclCommunicator* nccl, const Window& window,
                   const NodeSlots* node_slots, std::function<void()> beside_it, Sampler sample,
                   int64_t resident_bytes_before, int64_t free_before, TraceRecorder* recorder, EnergyCounter* counter)
    : plan(run_plan),
      worker(worker_number),
      beside(std::move(beside_it)),
      sampler(std::move(sample)),
      resident_before(resident_bytes_before),
      device_free_before(free_before),
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
  model.reserve(plan.largest_batches);
  if (plan.unbounded()) {
    squares = DeviceBuffer<double>(compute.device(), std::ssize(parameters));
    squares_on_host = PinnedBuffer<double>(compute.device(), std::ssize(parameters));
  }
}

// What others may still read or write stays: host memory, in which messages of MPI may be under way.
void Worker::Impl::free_device() noexcept {
  if (compute.device().kind == DeviceKind::cpu) return;
  try {
    compute.synchronize();
    on_device.free_device();
    sender.free_device();
    squares = {};
    const Transformer gone = std::move(model);
    compute = Stream(Device{});
  } catch (const std::exception&) {  // the device is lost as well: whoever needs it next will say so
  }
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
  const double unit_begin_s = now_s();
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
                          .elapsed_s = now_s() - unit_begin_s - (account.waited_for_parameters() - waited_before),
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
    void before_growth() override { worker.before_growth(); }
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

Worker::Worker(const RunPlan& plan, int worker, const Dataset& dataset, const Communicator& world,
               const Communicator& workers, NcclCommunicator* nccl, const Window& window, const NodeSlots* node_slots,
               std::function<void()> beside, Sampler sampler, int64_t resident_before, int64_t device_free_before,
               TraceRecorder* trace, EnergyCounter* energy)
    : impl_(std::make_unique<Impl>(plan, worker, dataset, world, workers, nccl, window, node_slots, std::move(beside),
                                   std::move(sampler), resident_before, device_free_before, trace, energy)) {}
Worker::~Worker() = default;

void Worker::run() { impl_->run(); }
void Worker::free_device() noexcept { impl_->free_device(); }

}  // namespace hat
