#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/config/deck.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/ledger/unit_cost_model.hpp"

namespace hat {

struct LedgerOptions {
  int workers = 1;
  int completions = 1;  ///< that a step needs to be committed: of each server, and of whatever else completes it
  Dispatch dispatch = Dispatch::on_demand;
  int64_t unit_tokens = 512;  ///< most target tokens of a unit of several sequences; on demand, where little is left of
                              ///< a step, as many as its longest sequence has
  int64_t least_tokens =
      512;                   ///< on demand a unit has at least so many, unless they do not fit or the step has no more
  double max_delay_s = 0.5;  ///< on demand a unit of several sequences takes at most this long
  double area_weight = 0;    ///< of the cost model
  bool deterministic = false;  ///< units go to workers by their number, not by demand
  int64_t first_step = 0;      ///< where training starts or continues
  int64_t end_step = 0;        ///< one behind the last
  int64_t lookahead = 2;       ///< steps beyond the last committed one from which units may be leased
  /// S: units of step t begin once step t - 1 - S is done (on demand: to plan ahead; 0 where unbounded).
  int64_t staleness = 0;
  int64_t sync_steps = 0;      ///< first steps of training in which S is 0
  double before_barrier = 1;   ///< share of a unit's time before it needs all of the step before; 1: it never does
  int64_t evaluate_every = 0;  ///< steps; 0: only before and after training
  int64_t pause_every = 0;     ///< steps at which everything in flight is finished first; 0: never
};

/// A committed step, for the log.
struct StepResult {
  int64_t step = 0;
  int64_t epoch = 0;
  double nats = 0;
  int64_t tokens = 0;
  std::vector<int64_t> staleness_counts;  ///< [s]: pushes that were s versions old when applied
};

/// Validation with the parameters after `step` steps.
struct EvaluationResult {
  int64_t step = 0;
  double nats = 0;
  int64_t tokens = 0;
};

/// Which sequences are free, leased, computed, committed. Lives on server 0, does no communication.
/// A unit's life:
///   free -> leased     next() gave it to a worker
///   leased -> computed the worker reported its loss
///   computed -> committed, all units of a step at once, when every server has applied the step and whatever else
///                      completes it has come in
/// Any other transition is an error. Steps commit in order; each sequence of an epoch belongs to exactly one unit.
///
/// How work is handed out:
///   static     worker w has sequences w, w + W, w + 2 W ... of the step
///   sorted     the same after sorting by length: equal counts, similar loads
///   balanced   sets of nearly equal estimated cost (balanced_partition)
///   on_demand  units are formed when a worker asks: the longest free sequences first, single or packed up to
///              unit_tokens, max_delay_s and what the worker can do until the step ends if no worker idles; the less
///              predictable units are, the smaller a part of that. A worker asks while it still computes; which unit it
///              gets is what it would take if all took the longest one whenever they become free, as the cost model
///              predicts. So a worker that has hours to go on a long sequence does not sit on another that somebody
///              else could begin earlier.
class Ledger {
 public:
  Ledger(DataOrder& order, std::vector<std::vector<Sequence>> validation, const LedgerOptions& options);

  /// What `worker` does next. Never waits: Lease kind `none` if there is nothing at this moment. `now_s`: a clock.
  Lease next(int64_t worker, double now_s = 0);

  void unit_computed(const UnitReport& report, double now_s = 0);
  void server_completed_step(const StepComplete& message, double now_s = 0);
  /// Number `completion` of LedgerOptions::completions is in; those of servers have the servers' numbers.
  void completed(int64_t completion, int64_t step, double now_s = 0);
  void group_evaluated(const EvaluationReport& report);

  /// Steps committed and evaluations finished since the last call, in order.
  std::vector<StepResult> take_steps();
  std::vector<EvaluationResult> take_evaluations();

  int64_t committed_steps() const { return committed_; }
  /// Target tokens of a step that is open: some unit of it is leased, and it is not committed.
  int64_t step_tokens(int64_t step) const { return steps_.at(step).target_tokens; }
  /// Completions that the oldest step that is not committed lacks; for the message of a time-out.
  std::vector<int64_t> missing_completions() const;
  bool finished() const { return phase_ == Phase::finished; }
  const UnitCostModel& cost_model() const { return costs_; }

 private:
  /// Training goes from pause to pause; at each pause everything in flight is finished, and evaluated where it is due.
  enum class Phase { training, evaluating, finished };
  enum class UnitState { free, leased, computed };
  struct Unit {
    int64_t order = 0;  // place in the step
    std::vector<Sequence> sequences;
    UnitState state = UnitState::free;
    double nats = 0;
    int64_t tokens = 0;
  };
  struct OpenStep {
    int64_t epoch = 0;
    int64_t target_tokens = 0;
    std::map<int64_t, Unit> units;               // by number
    std::vector<std::deque<int64_t>> own_units;  // fixed in advance: of each worker, free ones
    std::deque<Sequence> free_sequences;         // on demand: in no unit yet, longest first
    int64_t longest = 0;                         // on demand: tokens of the longest one
    int64_t units_computed = 0;
    std::vector<bool> complete;  // by completion
    std::vector<int64_t> staleness_counts;
  };
  /// A unit that a worker has and did not report yet.
  struct Assigned {
    int64_t step;
    int64_t unit;
    UnitSize size;
  };
  struct WorkerState {
    int64_t first_step = 0;  // it was told that it has no unit of the steps before
    std::deque<Assigned> assigned;
    double since_s = 0;  // when it began the first of them, or ended its last
  };
  OpenStep& open_step(int64_t step);
  Unit& add_unit(OpenStep& step, std::vector<Sequence> sequences);
  void commit_complete_steps(double now_s);
  void advance_phase();
  int64_t next_pause(int64_t after) const;
  Lease lease_training(int64_t worker, double now_s);
  Lease lease_evaluation();
  Lease lease_unit(int64_t step, int64_t number);
  std::optional<int64_t> take_unit(int64_t worker, int64_t step, double now_s);
  Unit& unit_of(int64_t step, int64_t number);

  // On demand.
  bool plans_ahead() const { return options_.dispatch == Dispatch::on_demand && !options_.deterministic; }
  /// The step that must be done before units of `step` begin; -1: none.
  int64_t needed_by(int64_t step) const {
    if (options_.staleness == kUnbounded) return -1;
    return step - 1 - (step < options_.sync_steps ? 0 : options_.staleness);
  }
  std::vector<double> free_at(double now_s, int64_t step) const;
  double greatest_share() const;
  std::vector<size_t> unit_from(const OpenStep& step, const std::vector<size_t>& places, size_t begin, double left,
                                int64_t worker, bool gaps) const;
  std::vector<size_t> planned_unit(int64_t worker, const OpenStep& step, int64_t index, double now_s) const;

  DataOrder& order_;
  std::vector<std::vector<Sequence>> validation_;
  LedgerOptions options_;
  UnitCostModel costs_;
  Phase phase_;
  int64_t pause_;      // no step from here on is leased before everything below is committed
  int64_t committed_;  // steps below are committed
  int64_t next_unit_ = 0;
  std::map<int64_t, OpenStep> steps_;
  std::vector<WorkerState> workers_;
  std::map<int64_t, double> committed_at_;  // newest steps: when
  size_t groups_leased_ = 0;
  std::vector<std::optional<EvaluationReport>> groups_;
  std::vector<StepResult> finished_steps_;
  std::vector<EvaluationResult> finished_evaluations_;
};

/// Packs the sequences of a step, longest first, into runs of at most `unit_tokens` target tokens (a longer sequence is
/// a unit by itself). Longest first lets the short ones fill the end of a step.
std::vector<std::vector<Sequence>> pack_units(std::vector<Sequence> sequences, int64_t unit_tokens);

}  // namespace hat
