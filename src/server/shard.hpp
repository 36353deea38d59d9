#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/checkpoint/gradient_log.hpp"
#include "hat/comm/messages.hpp"
#include "hat/comm/versioned_slots.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/gradient/gradient_sum.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/metrics/trace.hpp"
#include "hat/optimizer/optimizer.hpp"
#include "server/clipping.hpp"
#include "server/delay_remedies.hpp"
#include "server/staleness_count.hpp"

namespace hat {

/// The parameters that one server owns: adds pushes, applies the optimizer, publishes versions.
///
/// Bounded modes: a part is updated once per step, when its sum is complete and its clipping factor known.
/// Unbounded: every push is one update, in order of arrival.
/// Updates run tensor by tensor in `progress`, so that the server answers in between.
class Shard {
 public:
  /// Called when all parts of this server have had the updates of a step, with what was counted of its pushes.
  using StepDone = std::function<void(const StepComplete&)>;
  /// Called for each part when it has the values that training has after `steps` steps (before any later update).
  using PartAtStep = std::function<void(int64_t part, int64_t steps)>;

  Shard(const RunPlan& plan, int server, DataOrder& order, const Window& window, Clipping& clipping, StepDone step_done,
        PartAtStep part_at_step);

  /// Fills and publishes the start values.
  void initialize();
  /// Fills and publishes the values, state and versions of a checkpoint.
  void restore(const CheckpointReader& checkpoint);

  /// Calls PartAtStep for the parts that have their values after `steps` steps already.
  void tell_parts_at(int64_t steps);

  /// `travel_s`: how long the push was on its way.
  void add_push(const PushHeader& header, std::span<const float> values, double travel_s);
  /// Does one piece of update work. False if there was none to do.
  bool progress();

  /// Newest values and optimizer state of a part as checkpoint slices; they point into this object.
  std::vector<TensorSlice> slices(int64_t part);
  int64_t version(int64_t part) const;
  /// Every push and update is appended there from now on, before it is published; null: nowhere.
  void set_log(GradientLog* log) { log_ = log; }
  /// Adding, updates and publishing are recorded there from now on; null: nowhere.
  void set_trace(TraceRecorder* trace) { trace_ = trace; }
  int64_t block(int64_t part) const { return plan_.shards.parts[static_cast<size_t>(part)].block; }

 private:
  struct PartState {
    int64_t index = 0;  // in ShardPlan::parts
    SlotPublisher slots;
    Optimizer optimizer;
    int64_t next_step = 0;                   // the first step that is not complete
    std::map<int64_t, GradientSum> sums;     // bounded: by step
    std::map<int64_t, int64_t> tokens_done;  // unbounded: target tokens applied, by step
    std::set<int64_t> steps_done;            // unbounded: complete, while an earlier one is not
    std::map<int64_t, MeanStaleness> late;   // bounded: by step
    std::optional<Prediction> prediction;    // staleness.predict, if the block may be late
    bool has_update_under_way = false;
  };
  /// An update under way or waiting for its clipping factor.
  struct Update {
    PartState* part;
    int64_t step;
    double tokens;
    double norm;  // unbounded: as the worker sent it
    std::shared_ptr<const std::vector<float>> gradient;
    double sum_of_squares = 0;  // bounded: of the mean gradient
    int64_t base_version;       // unbounded
    double asked_s = 0;         // unbounded: when its parameters were asked for
    int64_t unit = -1;          // unbounded: of the push
    bool started = false;
    int64_t next_piece = 0;
    double scale = 0;
    double staleness = 0;  // mean over its pushes
    double begin_s = 0;    // of its first piece
    double travel_s = 0;   // of its last push
    int64_t logged = -1;   // its number in the log
    bool computed() const { return started && next_piece == part->optimizer.pieces(); }
  };
  /// What the order of data says of a step.
  struct StepSize {
    int64_t epoch = 0;
    int64_t tokens = 0;
  };

  PartState& part_of(const PushHeader& header);
  void add_to_sum(PartState& part, const PushHeader& header, std::span<const float> values, double travel_s);
  void queue_update(PartState& part, const PushHeader& header, std::span<const float> values, double travel_s);
  bool try_start(Update& update);
  /// The gradient, with delay compensation where the deck asks for it and it was late.
  std::shared_ptr<const std::vector<float>> remedied_gradient(const Update& update);
  void update_piece(Update& update);
  void log_push(const PushHeader& header, std::span<const float> values);
  void log_update(Update& update);
  void log_version(const Update& update, int64_t version);
  void finish(Update& update);
  /// What the staleness limit multiplies the gradient by; counts it.
  double limit_factor_of(const Update& update);
  void part_completed_step(PartState& part, int64_t step);
  void trace(TraceKind kind, const PartState& part, double begin_s, int64_t step, int64_t unit, int64_t version);
  void count_staleness(int64_t step, int64_t block, int64_t staleness, int64_t base_version);
  LearningRates rates(int64_t step) const;
  const StepSize& step_size(int64_t step);

  const RunPlan& plan_;
  int server_;
  DataOrder& order_;
  Clipping& clipping_;
  StepDone step_done_;
  PartAtStep part_at_step_;
  std::vector<std::unique_ptr<PartState>> parts_;
  std::deque<Update> updates_;
  std::map<int64_t, StepSize> step_sizes_;    // of open steps: the order is cheap only forwards
  std::map<int64_t, int64_t> parts_done_;     // by step
  std::map<int64_t, StalenessCount> counts_;  // of the pushes of open steps
  std::vector<float> base_values_;            // delay compensation: of a piece
  GradientLog* log_ = nullptr;
  TraceRecorder* trace_ = nullptr;
};

}  // namespace hat
