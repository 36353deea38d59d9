#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "commands/run_setup.hpp"
#include "hat/checkpoint/checkpoint.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// How a run that is continued comes to its last committed step: from checkpoints and gradient log as they were found.
struct RecoveryPlan {
  std::optional<GradientLogReader> log = {};  ///< none: the run has none
  std::optional<int64_t> base = {};           ///< step of the checkpoint to build on; none: the start values
  std::vector<int64_t> damaged = {};          ///< newer checkpoints, damaged ones that the log replaces
  std::optional<CheckpointState> state = {};  ///< that training continues from; none: nothing is there to continue from
  std::filesystem::path source = {};          ///< the checkpoint or log that says so
  bool is_needed = false;                     ///< log records follow the checkpoint, or damaged ones are in the way
};

/// Reads checkpoints and log; writes nothing. Throws InputError when the newest checkpoint is damaged and the log does
/// not replace it.
RecoveryPlan plan_recovery(const std::filesystem::path& run);

struct RecoveryEnd {
  ExitCode code = ExitCode::success;
  int64_t step = 0;                             ///< of the newest checkpoint now
  std::optional<std::string> stop_reason = {};  ///< it was asked to stop before the run was where it had been
};

/// Where the gradient log reaches beyond the newest complete checkpoint, the ranks rebuild the servers' shards from
/// both and write them as a checkpoint of the last committed step; from it the run goes on, on any number of servers
/// and workers. A damaged newest checkpoint is set aside where an older one and the log reach as far. Says on standard
/// output what it did. In any case takes back the marks that killed writers have left in files of the log.
///
/// Stop signals and the plan's deadline end it earlier, with a checkpoint of the step that it has come to: the next
/// start goes on from there. (Unbounded: only at steps before which all updates of earlier steps were made.)
///
/// Collective. `found`: of rank 0, whose process holds the run's lock; others pass an empty one.
RecoveryEnd recover_run(const Communicator& world, const RunSetup& setup, RecoveryPlan found);

}  // namespace hat
