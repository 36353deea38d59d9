#pragma once
#include <cmath>
#include <cstdint>
#include <deque>

#include "hat/gradient/run_plan.hpp"

namespace hat {

/// When a run has to stop so that its last checkpoint is complete before its time is over: foreseen from how long steps
/// and checkpoints have taken so far. All times on the clock of now_s().
class TimeLimit {
 public:
  /// `now`: when training begins.
  TimeLimit(const RunPlan& plan, double now);

  bool is_set() const { return std::isfinite(plan_.deadline.at_s); }
  /// A step was committed.
  void step_done(double now);
  /// Something else than training was done until now: it counts to no step.
  void training_goes_on(double now) { last_step_s_ = now; }
  /// From the commit of its step until it was complete.
  void checkpoint_took(double seconds);

  /// What is left is just enough to finish `steps_under_way` steps, to write the checkpoint and to end.
  bool is_near(int64_t steps_under_way, double now) const {
    return now + ending_seconds(steps_under_way) > plan_.deadline.at_s;
  }
  /// For those steps, the checkpoint, and what cannot be foreseen.
  double ending_seconds(int64_t steps_under_way) const;

 private:
  const RunPlan& plan_;
  double margin_s_;
  double checkpoint_s_;  // the longest one; before the first, a guess
  bool guesses_checkpoint_ = true;
  double last_step_s_;
  std::deque<double> step_seconds_;  // of the newest steps
};

}  // namespace hat
