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
  int64_t gang = kNoGang;  ///< whose members begin together, and
  double exchange_s = 0;   ///< wait so long for each other, as predicted

  static constexpr int64_t kNoGang = -1;
};

struct WorkerState {
  int64_t first_step = 0;  ///< it was told that it has no unit of the steps before
  std::deque<Assigned> assigned;
  std::deque<Assigned> reserved;  ///< ranges that it will be given, before any unit of a later step
  double since_s = 0;             ///< when it began the first of those assigned, or ended its last
};

/// What of a step is in no unit yet.
struct FreeSequences {
  std::deque<Sequence> sequences;  ///< longest first
  int64_t longest = 0;             ///< tokens of the longest that the step had
};

/// How far a run is.
struct RunState {
  int64_t committed = 0;                   ///< steps below are committed
  std::map<int64_t, double> committed_at;  ///< newest of them: when
  std::vector<WorkerState> workers;
  std::map<int64_t, FreeSequences> free = {};  ///< by open step
};

/// Work on demand: which unit a worker gets when it asks. It asks while it still computes, so the answer is a plan:
///   - From the cost model, when each worker will be free and may begin units of the step, and when these may pass the
///     first barrier block.
///   - Then the free sequences of the step, longest first, each go to the worker that can finish it earliest. So a
///   worker
///     that has hours to go on a long sequence does not sit on another that somebody else could begin earlier.
///   - The unit is the longest of those that went to the worker that asks, alone, or packed with others of them up to
///     unit_tokens, max_delay_s and a share of what it has; the less predictable units are, the smaller the share. It
///     has least_tokens, if need be beyond max_delay_s, unless the plan leaves no more for it. A rest too small for a
///     unit of its own goes with the one before it.
///   - Nothing, if the others will have taken all.
/// The plan is made afresh for each who asks, and nothing of it is kept. Ranges of sequences that several workers
/// compute at once are reserved beforehand (GangPlanner): whoever waits for the other members of a gang is given what
/// it can finish meanwhile.
class Planner {
 public:
  /// Both outlive the planner.
  Planner(const LedgerOptions& options, const UnitCostModel& costs) : options_(options), costs_(costs) {}

  /// Places in the step's free sequences, ascending, of the unit of `step` that `worker` gets; empty: none.
  std::vector<size_t> unit_for(int64_t worker, int64_t step, const RunState& run, double now_s) const;
  /// The same for a worker that has a range reserved in this step: what it can finish before the others of its gang are
  /// free.
  std::vector<size_t> unit_before_gang(int64_t worker, int64_t step, const RunState& run, double now_s) const;
  /// When each worker can begin units of the step, once it has done all that it has and its part of the steps before,
  /// of which `worker` gets no more.
  std::vector<double> free_at(int64_t worker, int64_t step, const RunState& run, double now_s) const;

 private:
  /// The step that must be done before units of `step` begin; -1: none.
  int64_t needed_by(int64_t step) const {
    if (options_.staleness == kUnbounded) return -1;
    return oldest_late_version(step, options_.staleness, options_.sync_steps) - 1;
  }
  bool has_barrier() const { return options_.before_barrier < 1; }
  /// What has been leased will be done, and what is free of the steps before by those that are not behind it, `worker`
  /// left out, as far as can be told:
  struct Outlook {
    std::vector<double> free_at;           // by worker: it may begin units of the step
    std::vector<double> free_before;       // the same, before what is reserved for it
    std::map<int64_t, double> gang_begin;  // by gang: all members are there
    double past_barrier_s = 0;             // all units of the steps before have left the first barrier block
  };
  Outlook outlook(int64_t worker, int64_t step, const RunState& run, double now_s) const;
  double end_of_unit(double begin_s, double seconds, double past_barrier_s) const;
  double greatest_share() const;
  std::vector<size_t> unit_from(const FreeSequences& free, const std::vector<size_t>& places, size_t begin, double left,
                                int64_t worker, bool gaps) const;

  const LedgerOptions& options_;
  const UnitCostModel& costs_;
};

}  // namespace hat
