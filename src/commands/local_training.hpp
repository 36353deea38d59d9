#pragma once
#include <cstdint>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/model/shard_plan.hpp"
#include "hat/model/transformer.hpp"
#include "hat/optimizer/optimizer.hpp"

namespace hat {

/// Where the seconds of a step went.
struct StepSeconds {
  double total = 0.0;
  double products = 0.0;   ///< matrix products of the blocks below the head
  double attention = 0.0;  ///< without its projections
  double loss = 0.0;       ///< head: its norm, logits, cross-entropy, and their gradients
  double optimizer = 0.0;  ///< the gradient's norm, clipping, update
  double rest() const { return total - products - attention - loss - optimizer; }

  StepSeconds& operator+=(const StepSeconds& other);
};

/// Training steps of a deck's model in this process alone: parameters, gradients and optimizer are here. The worker's
/// forward and backward pass and the server's update, without the messages between them; the update runs on `threads`
/// threads, as that many servers would.
class LocalTraining {
 public:
  /// `deck.model.vocabulary` must be set. Throws InputError on impossible sizes.
  LocalTraining(const Deck& deck, ComputeOptions compute);

  /// One step on units that are computed one after the other. Clips by the step's own global norm (unless clip is
  /// none); the learning rate is the peak one. Without `update`, stops at the gradients.
  StepSeconds step(const std::vector<PackedBatch>& units, bool update);

  /// Nats per token of the last step.
  double loss() const { return loss_; }
  Transformer& model() { return model_; }
  int64_t parameter_bytes() const;
  int64_t optimizer_bytes() const;

 private:
  LossSum compute(const std::vector<PackedBatch>& units, StepSeconds& seconds);
  void update(int64_t tokens);
  double clip_factor(int64_t tokens) const;

  /// A tensor, or rows of one: what is updated at once.
  struct UpdateTask {
    size_t part;
    int64_t piece;
  };

  Deck deck_;
  int threads_;
  Stream stream_;
  Transformer model_;
  std::vector<DeviceBuffer<float>> parameters_;  ///< by block
  std::vector<DeviceBuffer<float>> gradients_;
  ParameterPointers parameter_pointers_;
  GradientPointers gradient_pointers_;
  std::vector<Part> parts_;
  std::vector<Optimizer> optimizers_;  ///< by part
  std::vector<UpdateTask> tasks_;
  int64_t updates_ = 0;
  double loss_ = 0.0;
};

}  // namespace hat
