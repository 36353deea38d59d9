#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/config/deck.hpp"
#include "hat/dataset/data_order.hpp"

namespace hat {

struct LedgerOptions {
  int workers = 1;
  int servers = 1;
  Dispatch dispatch = Dispatch::on_demand;
  int64_t unit_tokens = 512;
  bool deterministic = false;  ///< units go to workers by their number, not by demand
  int64_t first_step = 0;      ///< where training starts or continues
  int64_t end_step = 0;        ///< one behind the last
  int64_t lookahead = 2;       ///< steps beyond the last committed one from which units may be leased
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
///   computed -> committed, all units of a step at once, when every server has applied the step
/// Any other transition is an error. Steps commit in order; each sequence of an epoch belongs to exactly one unit.
class Ledger {
 public:
  Ledger(DataOrder& order, std::vector<std::vector<Sequence>> validation, const LedgerOptions& options);

  /// What `worker` does next. Never waits: Lease kind `none` if there is nothing at this moment.
  Lease next(int64_t worker);

  void unit_computed(const UnitReport& report);
  void server_completed_step(const StepComplete& message);
  void group_evaluated(const EvaluationReport& report);

  /// Steps committed and evaluations finished since the last call, in order.
  std::vector<StepResult> take_steps();
  std::vector<EvaluationResult> take_evaluations();

  int64_t committed_steps() const { return committed_; }
  /// Target tokens of a step that is open: some unit of it is leased, and it is not committed.
  int64_t step_tokens(int64_t step) const { return steps_.at(step).target_tokens; }
  /// Servers that have not completed the oldest step that is not committed; for the message of a time-out.
  std::vector<int64_t> servers_behind() const;
  bool finished() const { return phase_ == Phase::finished; }

 private:
  /// Training goes from pause to pause; at each pause everything in flight is finished, and evaluated where it is due.
  enum class Phase { training, evaluating, finished };
  enum class UnitState { free, leased, computed };
  struct Unit {
    int64_t number = 0;
    std::vector<Sequence> sequences;
    UnitState state = UnitState::free;
    double nats = 0;
    int64_t tokens = 0;
  };
  struct OpenStep {
    int64_t epoch = 0;
    int64_t target_tokens = 0;
    std::vector<Unit> units;
    std::vector<std::deque<int64_t>> free_units;  // one queue for all, or one per worker
    int64_t units_computed = 0;
    std::vector<bool> server_complete;
    std::vector<int64_t> staleness_counts;
  };

  OpenStep& open_step(int64_t step);
  void commit_complete_steps();
  void advance_phase();
  int64_t next_pause(int64_t after) const;
  Lease lease_training(int64_t worker);
  Lease lease_evaluation();
  Unit& unit_of(int64_t step, int64_t number);

  DataOrder& order_;
  std::vector<std::vector<Sequence>> validation_;
  LedgerOptions options_;
  Phase phase_;
  int64_t pause_;      // no step from here on is leased before everything below is committed
  int64_t committed_;  // steps below are committed
  int64_t next_unit_ = 0;
  std::map<int64_t, OpenStep> steps_;
  size_t groups_leased_ = 0;
  std::vector<std::optional<EvaluationReport>> groups_;
  std::vector<StepResult> finished_steps_;
  std::vector<EvaluationResult> finished_evaluations_;
};

/// Packs the sequences of a step, longest first, into runs of at most `unit_tokens` target tokens (a longer sequence is
/// a unit by itself). Longest first lets the short ones fill the end of a step.
std::vector<std::vector<Sequence>> pack_units(std::vector<Sequence> sequences, int64_t unit_tokens);

}  // namespace hat
