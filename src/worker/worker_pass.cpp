#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "hat/comm/backoff.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "hat/gradient/planted_noise.hpp"
#include "hat/kernels/operations.hpp"
#include "worker/worker_impl.hpp"

namespace hat {

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
  if (current.kind != LeaseKind::train || plan.deck.staleness_rule != StalenessRule::exact) return;
  // A worker that pushes each unit by itself may have no share in a step, and then nothing keeps servers from
  // overwriting what it has asked for.
  if (plan.pushes_single_units()) return;
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

// Who has entered a sum waits on the device for the others, and an allocation would wait for that in turn, on this
// thread, which those others may be waiting for.
void Worker::Impl::before_growth() { sender.wait_for_sums(); }

/// Of each block's gradient.
std::vector<double> Worker::Impl::squares_of_blocks() {
  const Operations& ops = operations(compute.device().kind);
  for (size_t block = 0; block < gradients.size(); ++block) {
    ops.sum_of_squares(compute, plan.layout.blocks[block].size, gradients[block], squares.data() + block);
  }
  copy_to_host(compute, squares.data(), squares_on_host.data(), squares.size());
  wait_for(compute);
  const std::span<const double> sums = squares_on_host.span();
  return {sums.begin(), sums.end()};
}

// One update per push: the servers clip by a norm that only the worker knows, so pushes leave after the backward pass.
void Worker::Impl::send_all_clipped() {
  const auto blocks = static_cast<int64_t>(parameters.size());
  const std::vector<double> of_blocks = squares_of_blocks();
  const auto norm_of = [&](double sum) { return std::sqrt(sum) / static_cast<double>(unit_tokens); };
  const double whole = norm_of(std::accumulate(of_blocks.begin(), of_blocks.end(), 0.0));
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
        norm = norm_of(of_blocks[static_cast<size_t>(block)]);
        break;
    }
    sender.sketch(block, current.step, current.order);
    sender.send(block, current.step, current.generation, current.order, norm, guard.age_s(block));
  }
  previous_norm = whole;
}

}  // namespace hat
