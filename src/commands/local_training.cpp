#include "commands/local_training.hpp"

#include <algorithm>
#include <cmath>

#include "commands/timed_operations.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"

namespace hat {

namespace {

constexpr int kShardsPerThread = 8;  // the update's pieces are then small enough to keep every thread busy

/// Tells the head's time from the other blocks'.
class HeadWatch : public PassObserver {
 public:
  explicit HeadWatch(int64_t head) : head_(head) {}

  void before_forward(int64_t block) override {
    if (block != head_) return;
    start_s_ = now_s();
    at_start_ = operation_seconds();
  }
  void after_backward(int64_t block) override {
    if (block != head_) return;
    seconds_ += now_s() - start_s_;
    const OperationSeconds now = operation_seconds();
    products_ += now.products - at_start_.products;
  }

  double seconds() const { return seconds_; }
  double products() const { return products_; }  ///< matrix products among them

 private:
  int64_t head_;
  double start_s_ = 0.0;
  OperationSeconds at_start_;
  double seconds_ = 0.0;
  double products_ = 0.0;
};

ComputeOptions timed(ComputeOptions compute) {
  compute.operations = &timed_operations();
  return compute;
}

}  // namespace

StepSeconds& StepSeconds::operator+=(const StepSeconds& other) {
  total += other.total;
  products += other.products;
  attention += other.attention;
  loss += other.loss;
  optimizer += other.optimizer;
  return *this;
}

LocalTraining::LocalTraining(const Deck& deck, ComputeOptions compute)
    : deck_(deck),
      threads_(compute.threads),
      stream_(Device{.kind = DeviceKind::cpu, .index = 0, .threads = threads_}),
      model_(deck.model, timed(compute)) {
  const ModelLayout& layout = model_.layout();
  for (const BlockSpec& block : layout.blocks) {
    parameters_.emplace_back(stream_.device(), block.size);
    gradients_.emplace_back(stream_.device(), block.size);
    parameter_pointers_.push_back(parameters_.back().data());
    gradient_pointers_.push_back(gradients_.back().data());
  }
  const ShardPlan shards = plan_shards(layout, threads_ * kShardsPerThread, deck.optimizer.kind);
  parts_ = shards.parts;
  for (size_t p = 0; p < parts_.size(); ++p) {
    optimizers_.emplace_back(deck.optimizer, layout, parts_[p]);
    for (int64_t piece = 0; piece < optimizers_.back().pieces(); ++piece) tasks_.push_back({p, piece});
  }
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
  for (size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    initialize(layout, part.block, part.begin, parameters_[static_cast<size_t>(part.block)].data() + part.begin,
               part.count, deck.seed);
  }
}

StepSeconds LocalTraining::step(const std::vector<PackedBatch>& units, bool with_update) {
  StepSeconds seconds;
  const double start_s = now_s();
  const LossSum sum = compute(units, seconds);
  const double computed_s = now_s();
  loss_ = sum.nats / static_cast<double>(sum.tokens);
  if (!std::isfinite(loss_)) throw Error("the loss is not finite any more: lower optimizer.learning_rate");
  if (with_update) update(sum.tokens);
  const double end_s = now_s();
  seconds.optimizer = end_s - computed_s;
  seconds.total = end_s - start_s;
  return seconds;
}

LossSum LocalTraining::compute(const std::vector<PackedBatch>& units, StepSeconds& seconds) {
  const Operations& ops = operations(DeviceKind::cpu);
  for (DeviceBuffer<float>& gradient : gradients_) ops.fill(stream_, gradient.size(), 0.0F, gradient.data());
  const OperationSeconds before = operation_seconds();
  HeadWatch head(static_cast<int64_t>(parameters_.size()) - 1);
  LossSum sum;
  for (const PackedBatch& unit : units) {
    const LossSum loss = model_.gradient(unit, parameter_pointers_, gradient_pointers_, head);
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
  }
  const OperationSeconds after = operation_seconds();
  seconds.products = after.products - before.products - head.products();
  seconds.attention = after.attention - before.attention;
  seconds.loss = head.seconds();
  return sum;
}

double LocalTraining::clip_factor(int64_t tokens) const {
  if (deck_.clip.rule == ClipRule::none) return 1.0;
  double squares = 0.0;
  for (const DeviceBuffer<float>& gradient : gradients_) {
    double sum = 0.0;
    operations(DeviceKind::cpu).sum_of_squares(stream_, gradient.size(), gradient.data(), &sum);
    squares += sum;
  }
  const double norm = std::sqrt(squares) / static_cast<double>(tokens);
  return norm > deck_.clip.norm ? deck_.clip.norm / norm : 1.0;
}

void LocalTraining::update(int64_t tokens) {
  const double scale = clip_factor(tokens) / static_cast<double>(tokens);
  const LearningRates rates{.base = deck_.optimizer.learning_rate, .muon = deck_.optimizer.muon_learning_rate};
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
  for (const UpdateTask& task : tasks_) {
    const Part& part = parts_[task.part];
    const auto block = static_cast<size_t>(part.block);
    float* values = parameters_[block].data() + part.begin;
    optimizers_[task.part].update(task.piece, updates_, rates, scale, gradients_[block].data() + part.begin, values,
                                  values);
  }
  ++updates_;
}

int64_t LocalTraining::parameter_bytes() const { return model_.layout().size() * static_cast<int64_t>(sizeof(float)); }

int64_t LocalTraining::optimizer_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    for (const TensorPiece& piece : pieces_of(model_.layout(), part)) {
      const TensorSpec& tensor =
          model_.layout().blocks[static_cast<size_t>(piece.block)].tensors[static_cast<size_t>(piece.tensor)];
      const auto states = static_cast<int64_t>(state_names(deck_.optimizer.kind, tensor).size());
      bytes += states * piece.size() * static_cast<int64_t>(sizeof(float));
    }
  }
  return bytes;
}

}  // namespace hat
