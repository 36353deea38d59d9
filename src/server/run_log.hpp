#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/ledger/ledger.hpp"
#include "hat/metrics/line_file.hpp"
#include "hat/server/run_result.hpp"
#include "server/block_log.hpp"
#include "server/run_metrics.hpp"
#include "server/training_speed.hpp"

namespace hat {

/// What the user sees of a run: lines on standard output, metrics.jsonl, metrics.h5 (run_metrics.hpp) and status.json
/// in the run folder, the summary.
///
/// metrics.jsonl, one object per line, by "kind":
///   start       blocks (names), first_step, end_step, servers, workers, worker_bytes (estimate for the rank of a
///               worker), device (cpu or cuda), device_bytes (planned of its CUDA device; 0 on CPUs), precision,
///               revision. A resumed run begins with another one, and goes on behind the step it continued from, where
///               lines may be missing, or, without a gradient log, there again
///   step        step (number of steps done), epoch, loss (nats per target token), tokens, learning_rate, norm (null in
///               unbounded training), staleness (pushes by versions late), gangs (sequences that
///               several workers computed at once), gang_members (ranges of those), required_gangs (of the gangs: no
///               worker has the memory), seconds since the start; what is recorded of blocks (block_log.hpp)
///   evaluation  step, loss, bits_per_byte, tokens, seconds
///   checkpoint  step, path, seconds, longest_copy_seconds (of one block on one server, which does nothing else
///               meanwhile), logged_bytes_per_step (gradient log of all servers, since the start)
///   split_trial steps were tried without gangs, or with them again (SplitDecision): first_step, last_step (steps done
///               with the first and the last of them), tried and taken from now on ("planned": gangs where a step is
///               predicted to end earlier, "off"), utilization_planned, utilization_off, gangs (that the plans of the
///               tried steps had), text (all of that in a sentence), seconds since the start
///   stop        step (number of steps that the run ends after, early), reason, seconds
///   worker      worker, seconds by activity, tokens, units;
///               pulls (of blocks), pulls_rejected (torn, or too old), pulled_bytes, pushed_bytes, exchanged_bytes
///               (sent in gangs), pulls_skipped (blocks that had not changed or were on the node already),
///               skipped_bytes, prefetches (blocks), wrong_prefetches; unit_time_error (mean relative error of the
///               predicted seconds of units; null: none predicted); of its process, in bytes, resident_before (of its
///               own, before training), peak_resident, and shared_resident of that; emulated_s (computing, without
///               stalls), mean_lag_s, worst_lag_s (of its emulated device, emulated_device.hpp; else 0); mpi_seconds,
///               barrier_transfer_seconds, gang_transfer_seconds, utilization and communication_share
///               (metrics/account.hpp); wall_seconds, node_joules (counters of its node over the run; null where they
///               are not read), device_joules and device_utilization (of its GPU, by NVML, from 0 to 1; null as well),
///               device_taken (bytes of its GPU, NCCL's and libraries' included; null on CPUs, or where it is shared)
///   gangs       gangs, members (both of this start), time_error (mean relative error of the predicted seconds of
///               gangs; null: none predicted), required (of the gangs: no worker has the memory), unsplit_steps (whose
///               sequences were split only for memory: to try that, or because it had been better)

/// What a checkpoint, and the log until then, cost all servers.
struct CheckpointCost {
  double longest_copy_s = 0;  ///< CheckpointWritten
  int64_t logged_bytes = 0;
};

/// What the ledger says of gangs at the end.
struct GangSummary {
  double time_error = 0;      ///< of their predicted seconds (GangPlanner); NaN: none predicted
  int64_t unsplit_steps = 0;  ///< SplitTrial
  std::optional<SplitDecision> unfinished_trial = {};
};

class RunLog {
 public:
  RunLog(const RunPlan& plan, const Dataset& dataset, const std::vector<std::vector<Sequence>>& validation);

  void unit(const UnitReport& report);
  void server_completed(const StepComplete& message) { run_metrics_.server_completed(message); }
  void step(const StepResult& result, double learning_rate, double norm, const StepBlocks& blocks);
  void evaluation(const EvaluationResult& result);
  void split_decision(const SplitDecision& decision);
  void checkpoint(int64_t step, const std::filesystem::path& path, const CheckpointCost& cost);
  void worker(const WorkerSummary& summary);
  /// The closing summary.
  void say_summary(const GangSummary& gangs);
  /// Saves what is left of the metrics; returns when it is on the disk, however slow that is. Nothing may be logged
  /// meanwhile, so another thread may do it.
  void close_files();
  /// Where the files are: when they are closed.
  void say_files() const;
  /// The run will end early, after so many steps.
  void stopping(int64_t steps, const std::string& reason);
  /// Status "finished", or "stopped" with the reason: when all files of the run are there, the trace too.
  void mark_ended(const std::optional<std::string>& stop_reason);
  /// All of it so far; complete after say_summary().
  RunResult result() const;

 private:
  void say_workers() const;
  void say_hidden() const;
  void say_gangs(const GangSummary& gangs);
  void say_trials(const GangSummary& gangs) const;
  void say_memory() const;
  void say_energy() const;
  void say_devices() const;
  void say_emulation() const;
  void write_status(nlohmann::json status);
  double seconds() const;

  const RunPlan& plan_;
  std::filesystem::path run_;
  double validation_bytes_;
  double start_s_;
  int64_t trained_tokens_ = 0;
  double last_step_s_;  // when the last step was committed; validation begins then
  TrainingSpeed speed_;
  struct {
    double nats = 0;
    int64_t tokens = 0;
  } interval_loss_;  // of steps that were committed since the last line
  std::vector<EvaluationResult> evaluations_;
  std::vector<int64_t> staleness_counts_;
  int64_t gangs_ = 0;
  int64_t gang_members_ = 0;
  int64_t required_gangs_ = 0;
  int64_t gang_steps_ = 0;  // that had some
  std::vector<SplitDecision> split_decisions_;
  int64_t unsplit_steps_ = 0;
  std::vector<WorkerSummary> workers_;
  std::filesystem::path last_checkpoint_;
  int64_t end_step_;  // the plan's, or where the run stops early
  std::vector<RunResult::StepPoint> step_points_;
  std::vector<double> evaluation_seconds_;
  BlockLog blocks_;
  LineFile metrics_;
  RunMetrics run_metrics_;
};

}  // namespace hat
