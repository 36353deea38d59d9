#pragma once
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/core/background_thread.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/ledger/ledger.hpp"
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
  void mark_finished() { log_.mark_finished(); }
  RunResult result() const { return log_.result(); }
  /// "worker 1 (unit 7 of step 3), server 2 (step 3)": for the message of a time-out.
  std::string waiting_for() const;

 private:
  /// A checkpoint whose server files are not all durable yet, or whose step is not committed yet.
  struct PendingCheckpoint {
    int64_t servers = 0;                  // whose file is durable
    std::vector<int64_t> block_versions;  // by block
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
  Position position(const StepResult& result) const;
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
  std::map<int64_t, int64_t> idle_workers_;                           // worker -> step it was told last
  std::map<int64_t, std::string> busy_workers_;                       // worker -> what it was leased
  std::map<int64_t, std::map<int64_t, double>> shares_;               // step -> server -> sum of squares
  std::map<int64_t, double> norms_;                                   // by step, the newest ones
  std::map<int64_t, PendingCheckpoint> pending_checkpoints_;          // by steps done
  std::map<int64_t, Position> positions_;                             // by steps done
  std::map<int64_t, std::future<std::filesystem::path>> completing_;  // by steps done
  int64_t last_checkpoint_;                                           // steps done
  int64_t tokens_ = 0;
  std::set<int64_t> ended_workers_;  // their summaries are in
  std::future<void> closing_;        // all is done, and the files of the log are being closed
  bool finished_ = false;
  BackgroundThread thread_;  // last member: it ends before what its jobs use
};

}  // namespace hat
