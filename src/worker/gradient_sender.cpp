#include "worker/gradient_sender.hpp"

#include <algorithm>
#include <utility>

#include "hat/comm/ring_all_reduce.hpp"
#include "hat/core/fault.hpp"
#include "hat/gradient/nccl_buckets.hpp"

namespace hat {

GradientSender::GradientSender(const RunPlan& plan, const Stream& compute, int worker, Mailbox& mailbox,
                               const Communicator& workers, NcclCommunicator* nccl, Waiting& waiting,
                               const BarrierSchedule& barriers)
    : plan_(plan),
      compute_(compute),
      push_(compute.device(), "push"),
      operations_(operations(compute.device().kind)),
      worker_(worker),
      mailbox_(mailbox),
      workers_(workers),
      nccl_(nccl),
      waiting_(waiting),
      barriers_(barriers),
      sequence_numbers_(static_cast<size_t>(plan.roles.servers()), 0) {
  for (const BlockSpec& block : plan_.layout.blocks) {
    const Device& device = compute.device();
    Buffer& buffer = buffers_.emplace_back();
    buffer.ring_name = "ring " + block.name;
    buffer.push_name = "push " + block.name;
    buffer.values = DeviceBuffer<float>(device, block.size);
    if (device.kind != DeviceKind::cpu) buffer.on_host = PinnedBuffer<float>(device, block.size);
    if (!plan_.records_sketches()) continue;
    buffer.sketch = DeviceBuffer<float>(device, kSketchBuckets);
    buffer.squares = DeviceBuffer<double>(device, 1);
    buffer.sketch_on_host = PinnedBuffer<float>(device, kSketchBuckets);
    buffer.squares_on_host = PinnedBuffer<double>(device, 1);
  }
  if (compute.device().kind == DeviceKind::cpu || !plan_.records_sketches()) return;
  // What the operation needs beside, the stream takes now: nothing is allocated while sums are under way.
  Buffer& largest = *std::ranges::max_element(buffers_, {}, [](const Buffer& buffer) { return buffer.values.size(); });
  operations_.fill(push_, largest.values.size(), 0.0F, largest.values.data());
  operations_.count_sketch(push_, largest.values.size(), largest.values.data(), largest.sketch.data(),
                           largest.squares.data());
  push_.synchronize();
}

void GradientSender::free_device() {
  push_.synchronize();
  for (Buffer& buffer : buffers_) {
    buffer.values = {};
    buffer.sketch = {};
    buffer.squares = {};
    buffer.computed = {};
  }
  compute_ = push_ = Stream(Device{});
}

bool GradientSender::in_ring(int64_t block) const {
  return std::any_of(rings_.begin(), rings_.end(), [block](const Ring& ring) { return ring.block == block; });
}

bool GradientSender::is_leaving(int64_t block) const {
  const auto of_block = [block](const auto& one) { return one.block == block; };
  return std::any_of(copying_.begin(), copying_.end(), of_block) ||
         std::any_of(sending_.begin(), sending_.end(), of_block);
}

void GradientSender::begin(int64_t block) {
  const auto is_copying = [&] {
    return std::any_of(copying_.begin(), copying_.end(), [block](const Leaving& one) { return one.block == block; });
  };
  waiting_.until(Activity::push_blocked, "a gradient to come from the device", [&] { return !is_copying(); });
  waiting_.until(Activity::wait_barrier, "the other workers in a ring all-reduce", [&] { return !in_ring(block); });
  waiting_.until(Activity::push_blocked, "a push to leave", [&] { return !is_leaving(block); });
  Buffer& buffer = at(block);
  if (!buffer.sent) return;
  operations_.fill(compute_, buffer.values.size(), 0.0F, buffer.values.data());
  buffer.sent = false;
  buffer.units.clear();
  buffer.tokens = 0;
}

void GradientSender::note_unit(int64_t block, int64_t unit, int64_t version, int64_t tokens) {
  Buffer& buffer = at(block);
  buffer.base_version = buffer.units.empty() ? version : std::min(buffer.base_version, version);
  buffer.units.push_back(unit);
  buffer.tokens += tokens;
  buffer.computed = compute_.record();
}

void GradientSender::discard() {
  for (Buffer& buffer : buffers_) buffer.sent = true;
}

void GradientSender::send(int64_t block, int64_t step, int64_t generation, int64_t order, double norm, double age_s) {
  Buffer& buffer = at(block);
  buffer.sent = true;
  if (barriers_.is_barrier(block, step)) fault_point(FaultPoint::barrier);
  Leaving leaving{.is_here = {},
                  .block = block,
                  .way = barriers_.uses_ring(block, step) ? Leaving::Way::ring : Leaving::Way::push,
                  .range = {.begin = 0, .end = buffer.values.size()},
                  .header = {.worker = worker_,
                             .generation = generation,
                             .step = step,
                             .block = block,
                             .tokens = buffer.tokens,
                             .base_version = buffer.base_version,
                             .order = order,
                             .norm = norm,
                             .units = buffer.units,
                             .age_s = age_s},
                  .sketch = std::exchange(sketch_, std::nullopt)};
  if (buffer.on_host.size() == 0) {
    leave(std::move(leaving));
    return;
  }
  push_.wait_for(buffer.computed);
  if (nccl_ != nullptr && leaving.way == Leaving::Way::ring) {
    // Sketches are made of what is there before.
    start_sum(block, step, generation, leaving.sketch ? push_.record() : buffer.computed);
    if (!leaving.sketch) return;
    leaving.way = Leaving::Way::sketch_alone;
  } else {
    copy_to_host(push_, buffer.values.data(), buffer.on_host.data(), buffer.values.size());
  }
  leaving.is_here = push_.record();
  copying_.push_back(std::move(leaving));
}

/// What goes out is where MPI may take it from.
void GradientSender::leave(Leaving leaving) {
  if (leaving.sketch) {
    const Buffer& buffer = at(leaving.block);
    const std::span<const float> sketch = buffer.sketch_on_host.span();
    leaving.sketch->sketch.assign(sketch.begin(), sketch.end());
    leaving.sketch->sum_of_squares = *buffer.squares_on_host.data();
    mailbox_.post(*leaving.sketch, plan_.roles.rank_of_server[0], MailTag::to_server);
  }
  switch (leaving.way) {
    case Leaving::Way::push:
      push(leaving.block, leaving.range, std::move(leaving.header));
      break;
    case Leaving::Way::ring:
      start_ring(leaving.block, leaving.header.step, leaving.header.generation);
      break;
    case Leaving::Way::sketch_alone:
      break;
  }
}

// Before the block enters its ring, where it becomes the sum of all workers'.
void GradientSender::sketch(int64_t block, int64_t step, int64_t order) {
  if (!plan_.records_sketches()) return;
  Buffer& buffer = at(block);
  const bool single = plan_.pushes_single_units() && !barriers_.uses_ring(block, step);
  push_.wait_for(buffer.computed);
  operations_.count_sketch(push_, buffer.values.size(), buffer.values.data(), buffer.sketch.data(),
                           buffer.squares.data());
  copy_to_host(push_, buffer.sketch.data(), buffer.sketch_on_host.data(), kSketchBuckets);
  copy_to_host(push_, buffer.squares.data(), buffer.squares_on_host.data(), 1);
  sketch_ = GradientSketch{.worker = worker_,
                           .step = step,
                           .block = block,
                           .place = single ? order : worker_,
                           .tokens = buffer.tokens,
                           .sketch = {}};
}

void GradientSender::start_ring(int64_t block, int64_t step, int64_t generation) {
  // Rings of different blocks and steps may overlap; a tag comes round again long after its ring has ended.
  constexpr int64_t kTags = 16384;
  const auto blocks = static_cast<int64_t>(plan_.layout.blocks.size());
  const auto tag = static_cast<int>((step * blocks + block) % kTags);
  keep(BlockSum(RingAllReduce(workers_, outgoing(block), tag)), block, step, generation);
}

// NCCL knows sums by their order alone: steps ascend, and in a step blocks descend, with every worker.
void GradientSender::start_sum(int64_t block, int64_t step, int64_t generation, const Event& computed) {
  using InBucket = NcclCommunicator::InBucket;
  const InBucket place = ends_bucket(plan_, barriers_, block, step) ? InBucket::last : InBucket::more_follow;
  keep(BlockSum(nccl_->start(at(block).values.span(), computed, place)), block, step, generation);
}

void GradientSender::keep(BlockSum operation, int64_t block, int64_t step, int64_t generation) {
  rings_.push_back(
      {.block = block,
       .step = step,
       .generation = generation,
       .operation = std::move(operation),
       .event = {.kind = TraceKind::ring, .begin_s = now_s(), .step = step, .block = static_cast<int32_t>(block)},
       .span = ProfilerSpan(at(block).ring_name.c_str())});
}

void GradientSender::enter_rings_with_zeros(int64_t step) {
  for (auto block = static_cast<int64_t>(plan_.layout.blocks.size()) - 1; block >= 0; --block) {
    if (!barriers_.uses_ring(block, step)) continue;
    begin(block);
    at(block).sent = true;
    if (nccl_ != nullptr) {
      start_sum(block, step, 1, compute_.record());
      continue;
    }
    std::ranges::fill(at(block).on_host.span(), 0.0F);
    start_ring(block, step, 1);
  }
}

void GradientSender::push(int64_t block, Range range, PushHeader header) {
  const FaultEffect effect = fault_point(FaultPoint::push);
  const int copies = effect == FaultEffect::drop ? 0 : effect == FaultEffect::duplicate ? 2 : 1;
  for (const int64_t index : plan_.shards.parts_of_block[static_cast<size_t>(block)]) {
    const Part& part = plan_.shards.parts[static_cast<size_t>(index)];
    const int64_t begin = std::max(range.begin, part.begin);
    const int64_t end = std::min(range.end, part.begin + part.count);
    if (begin >= end) continue;
    const int rank = plan_.roles.rank_of_server[static_cast<size_t>(part.server)];
    header.begin = begin;
    header.count = end - begin;
    header.sequence_number = ++sequence_numbers_[static_cast<size_t>(part.server)];
    for (int copy = 0; copy < copies; ++copy) send_push(header, rank, index);
    pushed_bytes_ += header.count * static_cast<int64_t>(sizeof(float));
  }
}

void GradientSender::send_push(const PushHeader& header, int rank, int64_t part) {
  mailbox_.post(header, rank, MailTag::to_server);
  const std::span<const float> values =
      outgoing(header.block).subspan(static_cast<size_t>(header.begin), static_cast<size_t>(header.count));
  sending_.push_back({.block = header.block,
                      .request = mailbox_.communicator().start_transfer(std::as_bytes(values), rank,
                                                                        static_cast<int>(MailTag::push_body)),
                      .event = {.kind = TraceKind::push,
                                .begin_s = now_s(),
                                .step = header.step,
                                .unit = header.units.empty() ? -1 : header.units.front(),
                                .version = header.base_version,
                                .block = static_cast<int32_t>(header.block),
                                .part = static_cast<int32_t>(part)},
                      .span = ProfilerSpan(at(header.block).push_name.c_str())});
}

void GradientSender::progress() {
  while (!copying_.empty() && copying_.front().is_here.is_done()) {
    Leaving leaving = std::move(copying_.front());
    copying_.pop_front();
    leave(std::move(leaving));
  }
  for (auto ring = rings_.begin(); ring != rings_.end();) {
    if (!ring->operation.step()) {
      ++ring;
      continue;
    }
    record(ring->event);
    send_share(*ring);
    ring = rings_.erase(ring);
  }
  std::erase_if(sending_, [this](Sending& sending) {
    if (!sending.request.test()) return false;
    record(sending.event);
    return true;
  });
}

// Every worker has the whole sum; it is pushed once, each worker its share of the elements.
void GradientSender::send_share(const Ring& ring) {
  Buffer& buffer = at(ring.block);
  const Range share = split_evenly(buffer.values.size(), workers_.size(), workers_.rank());
  PushHeader header{.worker = worker_,
                    .generation = ring.generation,
                    .step = ring.step,
                    .block = ring.block,
                    .tokens = buffer.tokens,
                    .complete = true,
                    .base_version = ring.step,  // barrier blocks are never late
                    .units = buffer.units};
  if (nccl_ == nullptr) {
    push(ring.block, share, std::move(header));
    return;
  }
  copy_to_host(push_, buffer.values.data() + share.begin, buffer.on_host.data() + share.begin, share.size());
  copying_.push_back({.is_here = push_.record(),
                      .block = ring.block,
                      .way = Leaving::Way::push,
                      .range = share,
                      .header = std::move(header),
                      .sketch = {}});
}

void GradientSender::record(TraceEvent& event) {
  if (trace_ == nullptr) return;
  event.end_s = now_s();
  trace_->add(event);
}

void GradientSender::wait_for_sums() {
  if (nccl_ == nullptr) return;
  waiting_.until(Activity::wait_barrier, "the other workers in a ring all-reduce", [this] { return rings_.empty(); });
}

void GradientSender::finish() {
  waiting_.until(Activity::push_blocked, "gradients to come from the device", [this] { return copying_.empty(); });
  waiting_.until(Activity::wait_barrier, "the other workers in a ring all-reduce", [this] { return rings_.empty(); });
  waiting_.until(Activity::push_blocked, "pushes to leave", [this] { return copying_.empty() && sending_.empty(); });
}

}  // namespace hat
