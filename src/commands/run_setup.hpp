#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/compute_choice.hpp"
#include "commands/memory_plan.hpp"
#include "commands/run_folder.hpp"
#include "hat/checkpoint/checkpoint.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/config/deck.hpp"
#include "hat/core/error.hpp"
#include "hat/core/watchdog.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/model/precision_choice.hpp"

namespace hat {

/// All that a rank needs before the first message.
struct RunSetup {
  std::optional<Dataset> dataset;
  std::optional<CheckpointReader> checkpoint;
  RunPlan plan;
  std::unique_ptr<RunFolderLock> lock;  ///< of server 0, until the end of the run
  UnitSizes units;
  bool has_room_for_gangs = true;
  ProductTimes product_times;     ///< zero: not measured
  bool keeps_arithmetic = false;  ///< of the start before (precision auto)
  int64_t fewest_cores = 0;       ///< that a worker may use
  std::string devices;            ///< what workers compute on, in words
  std::string rings;              ///< how CUDA workers sum barrier blocks' gradients, in words; empty: on CPUs, or none
  int64_t free_of_device = 0;     ///< bytes, before the run has made anything there
  int device_sharers = 1;         ///< workers on the CUDA device of this one, itself included
  int server = -1;                ///< number of this rank's server, or -1
  int worker = -1;
  Watchdog* watchdog = nullptr;

  /// The collectives of Communicator from here on, in which lost ranks are noticed (look_while_waiting). `file_bytes`:
  /// what some rank reads or writes meanwhile.
  void enter(const char* phase, int64_t file_bytes = 0) const {
    constexpr double kSlowestDisk = 10e6;  // bytes/s
    if (watchdog == nullptr) return;
    watchdog->enter(phase, start_patience_s(plan.deck) + static_cast<double>(file_bytes) / kSlowestDisk,
                    Watchdog::TroubleIsFor::caller);
  }
  /// Other collectives from here on, which never return when a rank is lost.
  void enter_blocking(const char* phase) const {
    if (watchdog != nullptr) watchdog->enter(phase, start_patience_s(plan.deck));
  }
  /// What comes has its own time-outs.
  void leave() const {
    if (watchdog != nullptr) watchdog->leave();
  }
};

/// Bytes of all files in a folder, or of a file; 0 where that cannot be seen.
int64_t bytes_of_files(const std::filesystem::path& path);

/// Of the checkpoints, or the log, of a run.
int64_t bytes_in_folders(const std::filesystem::path& run, const char* name);

/// The roles of the ranks, the data, the plan of the run; refuses what deck, data and folder have wrong. Nothing is
/// written. Throws Error.
void prepare_run(const Communicator& world, const std::vector<int>& node_of_rank, Deck deck,
                 const std::string& deck_text, RunSetup& setup);

/// Decides what the deck leaves open, the same on all ranks, and refuses what does not fit into memory. Collective.
ExitCode choose_compute(const Communicator& world, const std::vector<int>& node_of_rank, RunSetup& setup,
                        const KeyBlame& blame);

}  // namespace hat
