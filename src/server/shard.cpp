#include "server/shard.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/gradient/staleness_limit.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/optimizer/schedule.hpp"

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
    const Part& place = plan_.shards.parts[static_cast<size_t>(part->index)];
    hat::initialize(plan_.layout, place.block, place.begin, part->slots.begin(0).data(), place.count, plan_.deck.seed);
    part->slots.publish(0);
    if (part->prediction) part->prediction->publish_as_is(0, part->slots.values());
  }
}

void Shard::restore(const CheckpointReader& checkpoint) {
  const CheckpointState& state = checkpoint.state();
  for (const auto& part : parts_) {
    const Part& place = plan_.shards.parts[static_cast<size_t>(part->index)];
    const BlockSpec& block = plan_.layout.blocks[static_cast<size_t>(place.block)];
    const int64_t version = state.block_versions[static_cast<size_t>(place.block)];
    float* values = part->slots.begin(version).data();
    for (int64_t p = 0; p < part->optimizer.pieces(); ++p) {
      const TensorPiece& piece = part->optimizer.piece(p);
      const TensorSpec& tensor = block.tensors[static_cast<size_t>(piece.tensor)];
      checkpoint.read(parameter_path(block, tensor), piece.first_row, piece.rows, piece.columns,
                      values + piece.part_offset);
      for (OptimizerState& saved : part->optimizer.state(p)) {
        const auto columns = static_cast<int64_t>(saved.values.size()) / piece.rows;
        checkpoint.read(optimizer_path(saved.name, block, tensor), piece.first_row, piece.rows, columns,
                        saved.values.data());
      }
    }
    part->slots.publish(version);
    if (part->prediction) part->prediction->publish_as_is(version, part->slots.values());
  }
}

std::vector<TensorSlice> Shard::slices(int64_t part_index) {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const auto& p) { return p->index == part_index; });
  PartState& part = **found;
  const float* values = part.slots.values().data();
  std::vector<TensorSlice> result = checkpoint_slices(plan_, part_index);
  auto slice = result.begin();
  for (int64_t p = 0; p < part.optimizer.pieces(); ++p) {
    (slice++)->data = values + part.optimizer.piece(p).part_offset;
    for (const OptimizerState& state : part.optimizer.state(p)) (slice++)->data = state.values.data();
  }
  return result;
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
  GradientSum& sum = part.sums.try_emplace(header.step, place.count, step_tokens(header.step), adding).first->second;
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
                      .gradient = {},
                      .base_version = 0,
                      .travel_s = travel_s});
}

void Shard::queue_update(PartState& part, const PushHeader& header, std::span<const float> values, double travel_s) {
  updates_.push_back({.part = &part,
                      .step = header.step,
                      .tokens = static_cast<double>(header.tokens),
                      .norm = header.norm,
                      .gradient = {values.begin(), values.end()},
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
  if (update.started) return true;
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
  update.started = true;
  return true;
}

const float* Shard::gradient_of(const Update& update) const {
  return plan_.unbounded() ? update.gradient.data() : update.part->sums.at(update.step).sum();
}

// Under the rule exact, which compensation needs, all gradients of a step were taken at one version, and pulls keep its
// slot until the step has been applied.
const float* Shard::remedied_gradient(const Update& update) {
  const float* gradient = gradient_of(update);
  const PartState& part = *update.part;
  const Part& place = plan_.shards.parts[static_cast<size_t>(part.index)];
  if (plan_.deck.delay.compensation == 0 || update.staleness == 0) return gradient;
  const int64_t base = update.step - static_cast<int64_t>(update.staleness);  // of all its pushes
  const TensorPiece& piece = part.optimizer.piece(update.next_piece);
  const auto first = static_cast<size_t>(piece.part_offset);
  const auto count = static_cast<size_t>(piece.size());
  base_values_.resize(count);
  if (part.prediction) {
    part.prediction->read(base, piece.part_offset, base_values_);
  } else {
    part.slots.read(base, piece.part_offset, base_values_);
  }
  compensated_.resize(static_cast<size_t>(place.count));
  compensate(plan_.deck.delay.compensation, {gradient + first, count}, part.slots.values().subspan(first, count),
             base_values_, std::span(compensated_).subspan(first, count));
  return compensated_.data();
}

bool Shard::progress() {
  // One update at a time per part: while one is under way (it is then the first started one), no other may start on it.
  auto update = std::find_if(updates_.begin(), updates_.end(), [](const Update& u) { return u.started; });
  if (update == updates_.end()) {
    update = std::find_if(updates_.begin(), updates_.end(), [this](Update& u) { return try_start(u); });
  }
  if (update == updates_.end()) return false;
  PartState& part = *update->part;
  const int64_t version = part.slots.latest();
  if (update->next_piece == 0) update->begin_s = now_s();
  const TensorPiece& piece = part.optimizer.piece(update->next_piece);
  const float* gradient = remedied_gradient(*update);
  const float* old_values = part.slots.values().data();
  float* new_values = part.slots.begin(version + 1).data();
  if (part.prediction) part.prediction->before_update(version + 1, piece, old_values);
  part.optimizer.update(update->next_piece, version, rates(update->step), update->scale, gradient, old_values,
                        new_values, update->staleness);
  if (part.prediction) part.prediction->after_update(version + 1, piece, new_values);
  if (++update->next_piece == part.optimizer.pieces()) {
    finish(*update);
    updates_.erase(update);
  }
  return true;
}

void Shard::finish(Update& update) {
  PartState& part = *update.part;
  const int64_t version = part.slots.latest() + 1;
  const double publish_s = now_s();
  if (part.prediction) part.prediction->publish(version, update.travel_s);
  part.slots.publish(version, update.travel_s);
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
  if (tokens == step_tokens(update.step)) {
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
  step_tokens_.erase(step);
  const auto counts = counts_.extract(step);
  step_done_((counts.empty() ? StalenessCount{} : counts.mapped()).message(server_, step));
  clipping_.forget_before(step + 1);
}

int64_t Shard::step_tokens(int64_t step) {
  const auto found = step_tokens_.find(step);
  if (found != step_tokens_.end()) return found->second;
  return step_tokens_[step] = order_.step(step).target_tokens;
}

void Shard::count_staleness(int64_t step, int64_t block, int64_t staleness, int64_t base_version) {
  counts_[step].add(block, std::max<int64_t>(staleness, 0), base_version);
}

}  // namespace hat
