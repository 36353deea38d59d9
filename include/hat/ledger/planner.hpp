#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "hat/core/sequence.hpp"
#include "hat/ledger/ledger_options.hpp"
#include "hat/ledger/unit_cost_model.hpp"

namespace hat {

/// A unit that a worker has and did not report yet.
struct Assigned {
  int64_t step;
  int64_t unit;
  UnitSize size;
};

struct WorkerState {
  int64_t first_step = 0;  ///< it was told that it has no unit of the steps before
  std::deque<Assigned> assigned;
  double since_s = 0;  ///< when it began the first of them, or ended its last
};

/// How far a run is.
struct RunState {
  int64_t committed = 0;                   ///< steps below are committed
  std::map<int64_t, double> committed_at;  ///< newest of them: when
  std::vector<WorkerState> workers;
};

/// What of a step is in no unit yet.
struct FreeSequences {
  std::deque<Sequence> sequences;  ///< longest first
  int64_t longest = 0;             ///< tokens of the longest that the step had
};

/// Work on demand: which unit a worker gets when it asks. It asks while it still computes, so the answer is a plan:
///   - From the cost model, when each worker will be free and may begin units of the step, when these may pass the
///     first barrier block, and when all could end the step together if none of them idled.
///   - Then all take units in turn, whoever is free first: one that begins with the longest sequence left that this
///     worker can finish by that common end, or that no other would finish earlier. So a worker that has hours to go on
///     a long sequence does not sit on another that somebody else could begin earlier.
///   - A unit is that sequence alone, or packed with shorter ones up to unit_tokens, max_delay_s and a share of what
///     the worker can do until the common end; the less predictable units are, the smaller the share. It has
///     least_tokens, if need be beyond max_delay_s, unless the plan leaves no more for it. A rest too small for a unit
///     of its own goes with the one before it.
///   - What the worker that asks takes in this plan is its unit; nothing, if the others will have taken all.
/// The plan is made afresh for each who asks, and nothing of it is kept.
class Planner {
 public:
  /// Both outlive the planner.
  Planner(const LedgerOptions& options, const UnitCostModel& costs) : options_(options), costs_(costs) {}

  /// Places in `free_sequences`, ascending, of the unit of `step` that `worker` gets; empty: none.
  std::vector<size_t> unit_for(int64_t worker, int64_t step, const FreeSequences& free_sequences, const RunState& run,
                               double now_s) const;

 private:
  /// The step that must be done before units of `step` begin; -1: none.
  int64_t needed_by(int64_t step) const {
    if (options_.staleness == kUnbounded) return -1;
    return oldest_late_version(step, options_.staleness, options_.sync_steps) - 1;
  }
  bool has_barrier() const { return options_.before_barrier < 1; }
  /// What has been leased will be done, as far as can be told:
  struct Outlook {
    std::vector<double> free_at;  // by worker: it may begin units of the step
    double past_barrier_s = 0;    // all units of the steps before have left the first barrier block
  };
  Outlook outlook(int64_t step, const RunState& run, double now_s) const;
  double end_of_unit(double begin_s, double seconds, double past_barrier_s) const;
  double greatest_share() const;
  std::vector<size_t> unit_from(const FreeSequences& free, const std::vector<size_t>& places, size_t begin, double left,
                                int64_t worker, bool gaps) const;

  const LedgerOptions& options_;
  const UnitCostModel& costs_;
};

}  // namespace hat
