#include "server/shard.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "hat/gradient/staleness_limit.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/optimizer/schedule.hpp"
#include "server/part_values.hpp"

namespace hat {

Shard::Shard(const RunPlan& plan, int server, DataOrder& order, const Window& window, Clipping& clipping,
             StepDone step_done, PartAtStep part_at_step)
    : plan_(plan),
      server_(server),
      order_(order),
      clipping_(clipping),
      step_done_(std::move(step_done)),
      part_at_step_(std::move(part_at_step)) {
  for (const int64_t index : plan_.shards.parts_of_server[static_cast<size_t>(server_)]) {
    const auto i = static_cast<size_t>(index);
    parts_.push_back(std::make_unique<PartState>(
        PartState{.index = index,
                  .slots = SlotPublisher(window, plan_.slots.parts[i]),
                  .optimizer = Optimizer(plan_.deck.optimizer, plan_.layout, plan_.shards.parts[i]),
                  .next_step = plan_.first_step,
                  .sums = {},
                  .tokens_done = {},
                  .steps_done = {},
                  .late = {},
                  .prediction = {}}));
    if (plan_.deck.delay.predict && plan_.predicted_slots[i].slots > 0) {
      parts_.back()->prediction.emplace(window, plan_.predicted_slots[i], plan_.deck.staleness);
    }
  }
}

void Shard::initialize() {
  for (const auto& part : parts_) {
    initialize_part(plan_, part->index, part->slots.begin(0).data());
    part->slots.publish(0);
    if (part->prediction) part->prediction->publish_as_is(0, part->slots.values());
  }
}

void Shard::restore(const CheckpointReader& checkpoint) {
  for (const auto& part : parts_) {
    const int64_t version = checkpoint.state().block_versions[static_cast<size_t>(block(part->index))];
    restore_part(plan_, part->index, tensors_of(checkpoint), part->optimizer, part->slots.begin(version).data());
    part->slots.publish(version);
    if (part->prediction) part->prediction->publish_as_is(version, part->slots.values());
  }
}

std::vector<TensorSlice> Shard::slices(int64_t part_index) {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& p) { return p->index == part_index; });
  PartState& part = **found;
  return part_slices(plan_, part_index, part.optimizer, part.slots.values().data());
}

void Shard::tell_parts_at(int64_t steps) {
  for (const auto& part : parts_) {
    if (part->next_step == steps) part_at_step_(part->index, steps);
  }
}

int64_t Shard::version(int64_t part_index) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& p) { return p->index == part_index; });
  return (*found)->slots.latest();
}

Shard::PartState& Shard::part_of(const PushHeader& header) {
  for (const auto& part : parts_) {
    const Part& place = plan_.shards.parts[static_cast<size_t>(part->index)];
    if (place.block == header.block && header.begin >= place.begin &&
        header.begin + header.count <= place.begin + place.count) {
      return *part;
    }
  }
  throw Error(fmt::format("server {} received a push for elements {} to {} of block {}, which it does not own", server_,
                          header.begin, header.begin + header.count, header.block));
}

void Shard::add_push(const PushHeader& header, std::span<const float> values, double travel_s) {
  PartState& part = part_of(header);
  const double begin_s = now_s();
  log_push(header, values);
  if (plan_.unbounded()) {
    queue_update(part, header, values, travel_s);
  } else {
    add_to_sum(part, header, values, travel_s);
  }
  trace(TraceKind::adding, part, begin_s, header.step, header.units.empty() ? -1 : header.units.front(),
        header.base_version);
}

void Shard::trace(TraceKind kind, const PartState& part, double begin_s, int64_t step, int64_t unit, int64_t version) {
  if (trace_ == nullptr) return;
  trace_->add({.kind = kind,
               .begin_s = begin_s,
               .end_s = now_s(),
               .step = step,
               .unit = unit,
               .version = version,
               .block = static_cast<int32_t>(block(part.index)),
               .part = static_cast<int32_t>(part.index)});
}

void Shard::add_to_sum(PartState& part, const PushHeader& header, std::span<const float> values, double travel_s) {
  if (header.step < part.next_step) {
    throw Error(
        fmt::format("server {} received a push of step {} for a block that has had that update", server_, header.step));
  }
  const Part& place = plan_.shards.parts[static_cast<size_t>(part.index)];
  const AddingOrder adding = plan_.deck.deterministic ? AddingOrder::by_unit : AddingOrder::arrival;
  GradientSum& sum =
      part.sums.try_emplace(header.step, place.count, step_size(header.step).tokens, adding).first->second;
  if (header.complete) {
    sum.set(header.begin - place.begin, values);
  } else {
    sum.add(header.begin - place.begin, values, header.tokens, header.order);
  }
  part.late[header.step].add(header.step - header.base_version);
  count_staleness(header.step, header.block, header.step - header.base_version, header.base_version);
  if (!sum.complete()) return;

  double sum_of_squares = 0;
  const Stream stream{Device{}};
  operations(DeviceKind::cpu).sum_of_squares(stream, place.count, sum.sum(), &sum_of_squares);
  if (!std::isfinite(sum_of_squares)) {  // one update with it would spoil the parameters, and the next checkpoint
    throw Error(
        fmt::format("the loss has diverged: the gradient of block {} in step {} is not a number; the learning "
                    "rate may be too high, or the start values too large",
                    plan_.layout.blocks[static_cast<size_t>(place.block)].name, header.step));
  }
  const auto tokens = static_cast<double>(sum.step_tokens());
  clipping_.part_complete(part.index, header.step, sum_of_squares / (tokens * tokens));
  updates_.push_back({.part = &part,
                      .step = header.step,
                      .tokens = tokens,
                      .norm = 0,
                      .gradient = sum.values(),
                      .sum_of_squares = sum_of_squares / (tokens * tokens),
                      .base_version = 0,
                      .travel_s = travel_s});
}

void Shard::queue_update(PartState& part, const PushHeader& header, std::span<const float> values, double travel_s) {
  updates_.push_back({.part = &part,
                      .step = header.step,
                      .tokens = static_cast<double>(header.tokens),
                      .norm = header.norm,
                      .gradient = std::make_shared<const std::vector<float>>(values.begin(), values.end()),
                      .base_version = header.base_version,
                      .asked_s = now_s() - header.age_s,
                      .unit = header.units.empty() ? -1 : header.units.front(),
                      .travel_s = travel_s});
}

double Shard::limit_factor_of(const Update& update) {
  const StalenessLimitConfig& limit = plan_.deck.staleness_limit;
  if (!limit.is_set()) return 1.0;
  const PushAge late{.versions = update.part->slots.latest() - update.base_version,
                     .seconds = now_s() - update.asked_s};
  const Part& place = plan_.shards.parts[static_cast<size_t>(update.part->index)];
  // A block in several parts counts once.
  if (is_over(limit, late) && place.begin == 0) counts_[update.step].add_over_limit(place.block);
  return limit.action == OverLimit::scale ? limit_factor(limit, late) : 1.0;
}

LearningRates Shard::rates(int64_t step) const {
  const double factor = schedule_factor(plan_.deck.schedule, step, plan_.end_step);
  return {.base = plan_.deck.optimizer.learning_rate * factor,
          .muon = plan_.deck.optimizer.muon_learning_rate * factor};
}

// Steps of a part are applied in order. With S > 0 a sum can be complete, and its clipping factor known, while a slow
// worker still owes its push to the step before.
bool Shard::try_start(Update& update) {
  if (update.part->has_update_under_way) return false;
  const Part& place = plan_.shards.parts[static_cast<size_t>(update.part->index)];
  std::optional<double> factor;
  if (plan_.unbounded()) {
    factor = update.norm > plan_.deck.clip.norm ? plan_.deck.clip.norm / update.norm : 1.0;
    *factor *= limit_factor_of(update);
  } else if (update.step == update.part->next_step) {
    factor = clipping_.factor(place.block, update.step);
  }
  if (!factor) return false;
  update.scale = *factor / update.tokens;
  update.staleness = plan_.unbounded() ? static_cast<double>(update.part->slots.latest() - update.base_version)
                                       : update.part->late.at(update.step).mean();
  update.gradient = remedied_gradient(update);
  update.started = true;
  update.part->has_update_under_way = true;
  log_update(update);
  return true;
}

void Shard::log_push(const PushHeader& header, std::span<const float> values) {
  if (log_ == nullptr) return;
  GradientLog::Values kept;
  if (log_->wants_pushes()) kept = std::make_shared<const std::vector<float>>(values.begin(), values.end());
  log_->add(LoggedPush{.worker = header.worker,
                       .sequence_number = header.sequence_number,
                       .generation = header.generation,
                       .step = header.step,
                       .block = header.block,
                       .begin = header.begin,
                       .count = header.count,
                       .tokens = header.tokens,
                       .complete = header.complete ? 1 : 0,
                       .base_version = header.base_version,
                       .order = header.order,
                       .codec = static_cast<int64_t>(header.codec),
                       .values_checksum = checksum_of_values(values)},
            header.units, std::move(kept));
}

// Before it is applied: what is applied, and what of it is published, the log can bring back.
void Shard::log_update(Update& update) {
  if (log_ == nullptr) return;
  const Part& place = plan_.shards.parts[static_cast<size_t>(update.part->index)];
  const StepSize& size = step_size(update.step);
  const LearningRates learning = rates(update.step);
  update.logged = log_->add(LoggedUpdate{.step = update.step,
                                         .epoch = size.epoch,
                                         .step_tokens = size.tokens,
                                         .block = place.block,
                                         .begin = place.begin,
                                         .count = place.count,
                                         .version = update.part->slots.latest(),
                                         .tokens = static_cast<int64_t>(update.tokens),
                                         .scale = update.scale,
                                         .staleness = update.staleness,
                                         .learning_rate = learning.base,
                                         .muon_learning_rate = learning.muon,
                                         .sum_of_squares = update.sum_of_squares},
                            update.gradient);
}

void Shard::log_version(const Update& update, int64_t version) {
  if (log_ == nullptr) return;
  const Part& place = plan_.shards.parts[static_cast<size_t>(update.part->index)];
  log_->add(LoggedVersion{.step = update.step,
                          .block = place.block,
                          .begin = place.begin,
                          .version = version,
                          .values_checksum = checksum_of_values(update.part->slots.values())});
}

// Under the rule exact, which compensation needs, all gradients of a step were taken at one version, and pulls keep its
// slot until the step has been applied.
std::shared_ptr<const std::vector<float>> Shard::remedied_gradient(const Update& update) {
  const PartState& part = *update.part;
  if (plan_.deck.delay.compensation == 0 || update.staleness == 0) return update.gradient;
  const int64_t base = update.step - static_cast<int64_t>(update.staleness);  // of all its pushes
  auto compensated = std::make_shared<std::vector<float>>(update.gradient->size());
  for (int64_t p = 0; p < part.optimizer.pieces(); ++p) {
    const TensorPiece& piece = part.optimizer.piece(p);
    const auto first = static_cast<size_t>(piece.part_offset);
    const auto count = static_cast<size_t>(piece.size());
    base_values_.resize(count);
    if (part.prediction) {
      part.prediction->read(base, piece.part_offset, base_values_);
    } else {
      part.slots.read(base, piece.part_offset, base_values_);
    }
    compensate(plan_.deck.delay.compensation, {update.gradient->data() + first, count},
               part.slots.values().subspan(first, count), base_values_, std::span(*compensated).subspan(first, count));
  }
  return compensated;
}

void Shard::update_piece(Update& update) {
  fault_point(FaultPoint::update);
  PartState& part = *update.part;
  const int64_t version = part.slots.latest();
  if (update.next_piece == 0) update.begin_s = now_s();
  const TensorPiece& piece = part.optimizer.piece(update.next_piece);
  const float* old_values = part.slots.values().data();
  float* new_values = part.slots.begin(version + 1).data();
  if (part.prediction) part.prediction->before_update(version + 1, piece, old_values);
  part.optimizer.update(update.next_piece, version, rates(update.step), update.scale, update.gradient->data(),
                        old_values, new_values, update.staleness);
  if (part.prediction) part.prediction->after_update(version + 1, piece, new_values);
  ++update.next_piece;
}

bool Shard::progress() {
  // What is computed waits for nothing but the log.
  const auto done = std::ranges::find_if(updates_, [this](const Update& update) {
    return update.computed() && (log_ == nullptr || log_->may_publish(update.logged));
  });
  if (done != updates_.end()) {
    finish(*done);
    updates_.erase(done);
    return true;
  }
  auto update = std::ranges::find_if(updates_, [](const Update& u) { return u.started && !u.computed(); });
  if (update == updates_.end()) {
    update = std::ranges::find_if(updates_, [this](Update& u) { return !u.started && try_start(u); });
  }
  if (update == updates_.end()) return false;
  update_piece(*update);
  return true;
}

void Shard::finish(Update& update) {
  PartState& part = *update.part;
  const int64_t version = part.slots.latest() + 1;
  fault_point(FaultPoint::publish);
  const double publish_s = now_s();
  part.has_update_under_way = false;
  if (part.prediction) part.prediction->publish(version, update.travel_s);
  part.slots.publish(version, update.travel_s);
  log_version(update, version);
  trace(TraceKind::publish, part, publish_s, update.step, update.unit, version);
  trace(TraceKind::update, part, update.begin_s, update.step, update.unit, version);
  if (!plan_.unbounded()) {
    part.sums.erase(update.step);
    part.late.erase(update.step);
    ++part.next_step;
    part_completed_step(part, update.step);
    return;
  }
  count_staleness(update.step, block(part.index), part.slots.latest() - 1 - update.base_version, update.base_version);
  int64_t& tokens = part.tokens_done[update.step];
  tokens += static_cast<int64_t>(update.tokens);
  if (tokens == step_size(update.step).tokens) {
    part.tokens_done.erase(update.step);
    part.steps_done.insert(update.step);
    // A step may be complete before an earlier one is; what training has after it, the part has only then.
    while (part.steps_done.erase(part.next_step) > 0) part_completed_step(part, part.next_step++);
  }
}

void Shard::part_completed_step(PartState& part, int64_t step) {
  part_at_step_(part.index, step + 1);
  if (++parts_done_[step] < static_cast<int64_t>(parts_.size())) return;
  parts_done_.erase(step);
  step_sizes_.erase(step);
  if (log_ != nullptr && log_->ends_with_parts()) log_->completed_before(step + 1);
  const auto counts = counts_.extract(step);
  step_done_((counts.empty() ? StalenessCount{} : counts.mapped()).message(server_, step));
  clipping_.forget_before(step + 1);
}

const Shard::StepSize& Shard::step_size(int64_t step) {
  const auto found = step_sizes_.find(step);
  if (found != step_sizes_.end()) return found->second;
  const Step& of_order = order_.step(step);
  return step_sizes_[step] = {.epoch = of_order.epoch, .tokens = of_order.target_tokens};
}

void Shard::count_staleness(int64_t step, int64_t block, int64_t staleness, int64_t base_version) {
  counts_[step].add(block, std::max<int64_t>(staleness, 0), base_version);
}

}  // namespace hat
