#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/core/background_thread.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/ledger/ledger.hpp"
#include "hat/server/time_limit.hpp"
#include "server/run_log.hpp"
#include "server/sensitivity.hpp"

namespace hat {

/// The second job of server 0: the ledger's door. Answers lease requests, adds up norms, follows steps to their commit,
/// completes checkpoints, and ends the run.
class Coordinator {
 public:
  Coordinator(const RunPlan& plan, const Dataset& dataset, Mailbox& mailbox, const CheckpointReader* checkpoint);

  void receive(const LeaseRequest& request);
  void receive(const UnitReport& report);
  void receive(const EvaluationReport& report);
  void receive(const StepComplete& message);
  void receive(const NormShare& share);
  void receive(const CheckpointWritten& message);
  void receive(const WorkerSummary& summary);
  void receive(GradientSketch sketch);

  /// Ends the run early, with a checkpoint of the steps that are under way: `reason` goes into status.json. Only the
  /// first call counts. A run whose training is over ends as it would have, but without a long sample.
  void stop(const std::string& reason);

  /// From now on checkpoints are completed only up to this step: the log has all that a replay of those before needs.
  /// (payload metadata: behind a complete checkpoint nobody would compute what lacks. From 0 on it must be told.)
  void log_reaches(int64_t steps);
  /// Steps that every server and worker is through with.
  int64_t committed_steps() const { return ledger_.committed_steps(); }
  /// Follows files that are being written. False if nothing happened.
  bool progress();
  /// Everything is committed, saved and told, and the other servers know.
  bool finished() const { return finished_; }
  /// Checkpoints are put together, or the last metrics saved, which takes as long as the disk does.
  bool writes_files() const { return !completing_.empty() || closing_.valid(); }
  /// Waits for what is being written and closes the files of the run's log; for a run that goes on without this object.
  void abandon();
  /// The summary of this worker is in.
  bool has_ended(int64_t worker) const { return ended_workers_.contains(worker); }
  void mark_finished() { log_.mark_ended(stop_reason_); }
  RunResult result() const { return log_.result(); }
  /// "worker 1 (unit 7 of step 3), server 2 (step 3)": for the message of a time-out.
  std::string waiting_for() const;
  /// "step 3 (of 100) waits for worker 1 (unit 7 of step 3)", for the line about a stall.
  std::string stall_text() const;

 private:
  /// A checkpoint whose server files are not all durable yet, or whose step is not committed yet.
  struct PendingCheckpoint {
    int64_t servers = 0;                  // whose file is durable
    std::vector<int64_t> block_versions;  // by block
    CheckpointCost cost;
  };
  /// What a checkpoint says of the run at its step.
  struct Position {
    int64_t epoch = 0;
    int64_t tokens = 0;
    std::vector<double> recent_norms;
  };
  void after_event();
  void answer_idle_workers();
  void send_lease(int64_t worker, Lease lease);
  void log_steps();
  void start_completing_checkpoints();
  CheckpointState checkpoint_state(int64_t steps, const PendingCheckpoint& pending);
  Position position(int64_t steps) const;
  void stop_in_time();
  void end_if_done();
  void end();

  const RunPlan& plan_;
  const Dataset& dataset_;
  Mailbox& mailbox_;
  DataOrder order_;
  std::vector<std::vector<Sequence>> validation_;
  Ledger ledger_;
  Sensitivity sensitivity_;
  std::map<int64_t, StepBlocks> step_blocks_;  // of open steps: what is known so far
  RunLog log_;
  std::map<int64_t, int64_t> idle_workers_;                   // worker -> step it was told last
  std::map<int64_t, std::deque<std::string>> leased_;         // worker -> what it has not reported, oldest first
  std::map<int64_t, std::map<int64_t, double>> shares_;       // step -> server -> sum of squares
  std::map<int64_t, double> norms_;                           // by step, the newest ones
  std::map<int64_t, PendingCheckpoint> pending_checkpoints_;  // by steps done
  std::map<int64_t, Position> positions_;                     // by steps done
  std::map<int64_t, std::future<std::filesystem::path>> completing_;  // by steps done
  std::map<int64_t, CheckpointCost> checkpoint_costs_;                // of those
  int64_t last_checkpoint_;                                           // steps done; below first_step: none
  int64_t logged_steps_;                                              // see log_reaches
  int64_t end_step_;                                                  // the plan's, or where the run stops early
  bool told_to_stop_ = false;
  std::optional<std::string> stop_reason_;  // empty: it runs to the plan's end
  int64_t epoch_ = 0;                       // of the newest committed step
  TimeLimit time_limit_;
  std::map<int64_t, double> checkpoint_begin_s_;  // by steps done: when the step was committed
  int64_t tokens_ = 0;
  std::set<int64_t> ended_workers_;  // their summaries are in
  std::future<void> closing_;        // all is done, and the files of the log are being closed
  bool finished_ = false;
  BackgroundThread thread_;  // last member: it ends before what its jobs use
};

}  // namespace hat
