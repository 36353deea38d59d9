#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/ledger/ledger.hpp"
#include "hat/metrics/metrics_file.hpp"
#include "server/step_blocks.hpp"

namespace hat {

/// What server 0 hears about each step from workers and servers, put together when the step is committed: rows of
/// metrics.h5 (src/metrics/FORMAT.md), and the accounts of all workers since the last progress line.
///
/// A worker's time belongs to the step of the unit that it reported last: what passed between two reports, waiting and
/// validation included, goes to the step of the second. What passed after its last unit is a row of no units, of the
/// last step.
class RunMetrics {
 public:
  explicit RunMetrics(const RunPlan& plan);

  void unit(const UnitReport& report);
  void server_completed(const StepComplete& message);
  /// The step is committed: its rows. `seconds` since the start of the run.
  void step(const StepResult& result, double learning_rate, double norm, double seconds, const StepBlocks& blocks);
  void worker(const WorkerSummary& summary);
  /// The run ends after so many steps, not after those of the plan.
  void end_at(int64_t steps) { end_step_ = steps; }
  /// Rows up to now are saved soon: a run may be continued from here.
  void save_soon() { file_.save_soon(); }
  void finish() { file_.close(); }

  /// Time of all workers together since the last call, as far as they have reported.
  AccountReading take_interval();

 private:
  /// What a worker did for one step.
  struct WorkerStep {
    int64_t units = 0;
    int64_t tokens = 0;
    AccountReading time;
  };
  struct BlockStep {
    std::map<int64_t, int64_t> pushes;  // by versions late
    int64_t oldest_version = 0;
    int64_t newest_version = 0;
  };
  struct OpenStep {
    std::map<int64_t, WorkerStep> workers;
    std::map<int64_t, BlockStep> blocks;
  };
  void add_worker_rows(int64_t steps_done, OpenStep& open);
  void add_block_rows(int64_t steps_done, OpenStep& open, const StepBlocks& blocks);

  const RunPlan& plan_;
  std::map<int64_t, OpenStep> open_;          // by step
  std::vector<AccountReading> last_reading_;  // by worker
  AccountReading interval_;
  int64_t end_step_;
  MetricsFile file_;
};

}  // namespace hat
