#pragma once
#include <optional>
#include <string>

#include "hat/comm/communicator.hpp"
#include "hat/comm/rank_watch.hpp"
#include "hat/config/deck.hpp"
#include "hat/core/error.hpp"
#include "hat/core/watchdog.hpp"
#include "hat/server/run_result.hpp"

namespace hat {

/// What surrounds a run: of the process, not of its deck.
struct RunSurroundings {
  RunResult* result = nullptr;    ///< filled on the rank of server 0, which is rank 0 of `world`; null: nobody needs it
  std::string failure_note = {};  ///< put behind the line that says why a run failed
  Watchdog* watchdog = nullptr;   ///< ends this process when a collective hangs; null: nobody does
  RankWatch* watch = nullptr;     ///< of `world`: survivors may go on without the dead; null: a death ends the job
  /// Of the process, by now_s(): its time limit counts from there; empty: it has none.
  std::optional<double> begin_s = {};
  KeyBlame blame = {};  ///< tells where a key was set whose value is refused; empty: nobody knows
};

/// One training on all ranks of `world`, from the first check to the closed run folder. Collective; may be called
/// several times in one MPI job, each time on a communicator of its own (Communicator::split), so that no late message
/// of one run reaches the next.
///
/// `deck`: with presets resolved. `deck_text`: the effective deck, which must be the same on all ranks.
///
/// What can be refused is refused before anything is written: the first rank that refuses prints its line, and all
/// return the same exit code. A failure while communication is in flight aborts the whole MPI job. Where ranks are
/// watched, the loss of one is thrown as RankLost on every survivor, sooner or later: the run may be continued by them,
/// on a communicator of their own.
///
/// A stop signal (core/stop_signal.hpp) ends it with success: before the run folder is made as if it had not been
/// started, later with a checkpoint that a start with `resume` continues from.
ExitCode run_training(const Communicator& world, const Deck& deck, const std::string& deck_text,
                      const RunSurroundings& surroundings);

/// Refuses what run_training would refuse of this deck, as it would, and writes nothing. Collective.
ExitCode check_training(const Communicator& world, const Deck& deck, const KeyBlame& blame);

}  // namespace hat
