#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/ledger/gang_planner.hpp"
#include "hat/ledger/ledger_options.hpp"
#include "hat/ledger/link_check_budget.hpp"
#include "hat/ledger/planner.hpp"
#include "hat/ledger/split_trial.hpp"
#include "hat/ledger/unit_cost_model.hpp"

namespace hat {

/// A committed step, for the log.
struct StepResult {
  int64_t step = 0;
  int64_t epoch = 0;
  double nats = 0;
  int64_t tokens = 0;
  int64_t gangs = 0;                      ///< sequences that several workers computed at once
  int64_t gang_members = 0;               ///< ranges of those
  int64_t required_gangs = 0;             ///< of the gangs: because no worker has the memory
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
/// Any other transition is an error. Steps commit in order; each sequence of an epoch belongs to exactly one unit,
/// or each of its ranges does.
///
/// How work is handed out:
///   static     worker w has sequences w, w + W, w + 2 W ... of the step
///   sorted     the same after sorting by length: equal counts, similar loads
///   balanced   sets of nearly equal estimated cost (balanced_partition)
///   on_demand  units are formed when a worker asks (Planner)
/// Before that, when the first unit of a step is asked for, GangPlanner decides which sequences several workers compute
/// at once. Each range is a unit of its own, reserved for its worker before all others of the step (on demand: before
/// all that it cannot finish until the others of the gang are free).
class Ledger {
 public:
  Ledger(DataOrder& order, std::vector<std::vector<Sequence>> validation, const LedgerOptions& options);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// What `worker` does next. Never waits: Lease kind `none` if there is nothing at this moment. `now_s`: a clock.
  Lease next(int64_t worker, double now_s = 0);

  void unit_computed(const UnitReport& report, double now_s = 0);
  void server_completed_step(const StepComplete& message, double now_s = 0);
  /// Number `completion` of LedgerOptions::completions is in; those of servers have the servers' numbers.
  void completed(int64_t completion, int64_t step, double now_s = 0);
  void group_evaluated(const EvaluationReport& report, double now_s = 0);

  /// Ends training early: nothing is leased any more but the rest of the steps that are under way. Returns
  /// the steps that will then be done; the ledger is finished once they are committed, without an evaluation (one that
  /// is under way is given up). Without effect once the ledger is finished or stopped.
  int64_t stop();

  /// Steps committed and evaluations finished since the last call, in order.
  std::vector<StepResult> take_steps();
  std::vector<EvaluationResult> take_evaluations();
  /// What came of trying steps with and without gangs, since the last call.
  std::vector<SplitDecision> take_split_decisions() { return trial_.take_decisions(); }

  int64_t committed_steps() const { return run_.committed; }
  /// Steps that are begun and not committed: what `stop` would still wait for.
  int64_t steps_under_way() const { return first_step_not_begun() - run_.committed; }
  /// Target tokens of a step that is open: some unit of it is leased, and it is not committed.
  int64_t step_tokens(int64_t step) const;
  /// Completions that the oldest step that is not committed lacks; for the message of a time-out.
  std::vector<int64_t> missing_completions() const;
  bool finished() const { return phase_ == Phase::finished; }
  const UnitCostModel& cost_model() const { return costs_; }
  const GangPlanner& gang_planner() const { return gangs_; }
  const SplitTrial& split_trial() const { return trial_; }

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
    int64_t gang = Assigned::kNoGang;  // place in OpenStep::gangs
  };
  struct Gang {
    int64_t number = 0;  // in the run
    PlannedGang plan;
    int64_t reports = 0;
    double seconds = 0;    // of the member that began last
    double compute_s = 0;  // the most of all members
  };
  struct OpenStep {
    int64_t epoch = 0;
    int64_t target_tokens = 0;
    std::map<int64_t, Unit> units;  // by number
    std::vector<Gang> gangs;
    std::vector<std::deque<int64_t>> own_units;  // fixed in advance: of each worker, free ones
    int64_t units_computed = 0;
    std::vector<bool> complete;  // by completion
    std::vector<int64_t> staleness_counts;
    double cost = 0;          // of all its sequences
    double longest_cost = 0;  // of the longest
  };
  OpenStep& open_step(int64_t worker, int64_t step, double now_s);
  void add_gang(OpenStep& open, int64_t step, const Sequence& sequence, PlannedGang plan);
  std::vector<Sequence> form_gangs(OpenStep& open, int64_t worker, int64_t step, std::vector<Sequence> sequences,
                                   double now_s);
  std::vector<PlannedGang> plan_gangs(const std::vector<Sequence>& sequences, int64_t worker, int64_t step,
                                      double now_s);
  void gang_computed(OpenStep& step, const Unit& unit, const UnitReport& report);
  Unit& add_unit(OpenStep& step, std::vector<Sequence> sequences);
  void commit_complete_steps(double now_s);
  void advance_phase(double now_s);
  int64_t first_step_not_begun() const;
  int64_t next_pause(int64_t after) const;
  Lease lease_training(int64_t worker, double now_s);
  Lease lease_evaluation();
  Lease lease_unit(int64_t step, int64_t number);
  std::optional<int64_t> take_unit(int64_t worker, int64_t step, double now_s);
  Unit& unit_of(int64_t step, int64_t number);
  /// Splitting is tried against not splitting: it is left to this program, and may depend on timing.
  bool tries_splitting() const {
    return options_.gang.policy == SplitPolicy::automatic && !options_.deterministic &&
           options_.staleness != kUnbounded;
  }
  double mean_speed() const;
  bool plans_ahead() const { return options_.dispatch == Dispatch::on_demand && !options_.deterministic; }

  DataOrder& order_;
  std::vector<std::vector<Sequence>> validation_;
  LedgerOptions options_;
  UnitCostModel costs_;
  UnitCostModel prior_costs_;  // that nothing is observed in: the same whatever the timing
  Planner planner_;
  GangPlanner gangs_;
  SplitTrial trial_;
  LinkCheckBudget link_checks_;
  Phase phase_;
  int64_t pause_;  // no step from here on is leased before everything below is committed
  bool stopped_ = false;
  int64_t next_unit_ = 0;
  int64_t next_gang_ = 0;
  std::map<int64_t, OpenStep> steps_;
  RunState run_;
  size_t groups_leased_ = 0;
  std::vector<std::optional<EvaluationReport>> groups_;
  std::vector<StepResult> finished_steps_;
  std::vector<EvaluationResult> finished_evaluations_;
};

/// Packs the sequences of a step, longest first, into runs of at most `unit_tokens` target tokens (a longer sequence is
/// a unit by itself). Longest first lets the short ones fill the end of a step.
std::vector<std::vector<Sequence>> pack_units(std::vector<Sequence> sequences, int64_t unit_tokens);

}  // namespace hat
