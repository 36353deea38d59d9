#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/model/compute_options.hpp"

namespace hat {

/// Throws InputError when the run cannot be written there: it holds a run and resume is not set, is a file, or cannot
/// be written. Leaves nothing behind.
void check_run_folder(const Deck& deck);

/// Held by a process that trains in a folder, so that no other one does. File systems without such locks (network ones
/// may refuse them for folders) let everybody in. The system takes it back when the process ends in any way.
class RunFolderLock {
 public:
  /// Throws InputError when another process holds it and keeps it for some seconds (one that is ending lets go).
  explicit RunFolderLock(const std::filesystem::path& run);
  ~RunFolderLock();
  RunFolderLock(const RunFolderLock&) = delete;
  RunFolderLock& operator=(const RunFolderLock&) = delete;

 private:
  int file_;
};

/// Whether a process trains in the folder, as far as its lock shows (not always from another host). True where that
/// cannot be seen.
bool is_held(const std::filesystem::path& run) noexcept;

/// Throws InputError when a process trains in the folder, and goes on to for some seconds. A folder that is not there
/// is nobody's.
void check_not_held(const std::filesystem::path& run);

/// Creates the folder, takes its lock (unless that is `held` already) and writes deck.toml, the effective deck, and
/// status.json ("running"). Of a run that is continued, checkpoints that are not complete are set aside, with a line on
/// standard error.
std::unique_ptr<RunFolderLock> make_run_folder(const RunPlan& plan, std::unique_ptr<RunFolderLock> held);

/// For a rank that cannot go on: whether it is the one to tell why. The first one is: it has seen the cause, the others
/// mostly its consequences. The others get their answer once the reason is noted, or after some seconds: then they tell
/// what they have seen, rather than nobody anything. Where the folder cannot be seen or is full, lower ranks are first.
bool may_tell_failure(const std::filesystem::path& run, int rank) noexcept;

/// status.json says that the run failed, and why, as far as it still can be written. For the rank that may tell.
void note_failure(const std::filesystem::path& run, const std::string& reason) noexcept;

/// status.json says that the run was stopped with a checkpoint of step `step`, and why.
void note_stop(const std::filesystem::path& run, int64_t step, const std::string& reason);

/// Whether a rank has noted that the run failed.
bool has_failed(const std::filesystem::path& run) noexcept;

/// Whether the run that is to be continued has finished, with all steps that it is asked for or more.
bool is_over(const RunPlan& plan);

/// Steps done with the step that the last step line of metrics.jsonl tells of (behind a continuation further back it
/// may be an earlier one than others); 0: none.
int64_t last_logged_step(const std::filesystem::path& run);
/// What its newest start computed in, as metrics.jsonl says; none: it does not.
std::optional<Element> last_arithmetic(const std::filesystem::path& run);
/// What its workers computed on; none: metrics.jsonl does not say (older ones did not).
std::optional<DeviceKind> last_device(const std::filesystem::path& run);
/// Its newest start logs gradients so that no committed step is lost (log.payload sum or push, log.durability commit).
bool loses_no_step(const std::filesystem::path& run);
/// metrics.jsonl has a committed step.
bool has_logged_steps(const std::filesystem::path& run);

/// A run folder was made there, and nothing else came about: its start was killed, or failed, before the first step.
bool has_not_begun(const std::filesystem::path& run);

/// The newest complete checkpoint of the run. Throws InputError when there is none.
std::filesystem::path checkpoint_to_continue(const std::filesystem::path& run);

/// Throws InputError unless this deck and dataset continue what was stopped in the middle of: the same model, the same
/// data in the same order. `state`: where the run stands; `source`: the checkpoint or log that says so.
void check_continuation(const CheckpointState& state, const std::filesystem::path& source, const RunPlan& plan,
                        const Dataset& dataset);

}  // namespace hat
