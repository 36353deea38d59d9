#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Which blocks are barrier blocks in which step: those of the plan always, and with barriers = sensitivity those that
/// server 0 has chosen. The set of a step is known before any lease of it, and never changes. Server 0 chooses
/// (server/sensitivity.hpp); a worker learns from its leases, and enters the rings of every step by what it learnt,
/// units or not.
/// All that depends on whether a block is late in a step asks here.
class BarrierSchedule {
 public:
  explicit BarrierSchedule(const RunPlan& plan);

  /// The sets of all steps before `known_before` are those known so far with these changes.
  void learn(const std::vector<BarrierChange>& changes, int64_t known_before);

  /// The set of this step will not change.
  bool knows(int64_t step) const { return !plan_.barriers_change() || step < known_before_; }
  /// Throws Error when the set of the step is not known: to guess would make ranks wait for each other for ever.
  bool is_barrier(int64_t block, int64_t step) const;
  /// It is one, and its gradient is summed in a ring of the workers (barriers.via); otherwise each worker pushes its
  /// own.
  bool uses_ring(int64_t block, int64_t step) const {
    return plan_.deck.barrier_path == BarrierPath::ring && is_barrier(block, step);
  }
  /// Some block uses a ring in this step.
  bool has_rings(int64_t step) const;
  /// The oldest version of `block` on which step `step` may be computed; below `step`: the block is late.
  int64_t oldest_version(int64_t block, int64_t step) const;
  /// Step `step` is computed on `block` as servers predict it, for the step at which its gradient will be applied.
  bool is_predicted(int64_t block, int64_t step) const {
    return plan_.deck.delay.predict && oldest_version(block, step) < step;
  }

 private:
  const RunPlan& plan_;
  int64_t known_before_;
  std::vector<std::map<int64_t, bool>> changes_;  // by block: step -> is one from there on
};

}  // namespace hat
