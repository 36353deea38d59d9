#pragma once
#include <string>

#include "hat/comm/communicator.hpp"
#include "hat/config/deck.hpp"
#include "hat/core/error.hpp"
#include "hat/server/run_result.hpp"

namespace hat {

/// One training on all ranks of `world`, from the first check to the closed run folder. Collective; may be called
/// several times in one MPI job, each time on a communicator of its own (Communicator::split), so that no late message
/// of one run reaches the next.
///
/// `deck`: with presets resolved. `deck_text`: the effective deck, which must be the same on all ranks. `result`, if
/// not null, is filled on the rank of server 0, which is rank 0 of `world`. `blame` tells where a key was set whose
/// value is refused.
///
/// What can be refused is refused before anything is written: the first rank that refuses prints its line, and all
/// return the same exit code. A failure while communication is in flight aborts the whole MPI job; `failure_note` is
/// put behind the line that says why.
ExitCode run_training(const Communicator& world, const Deck& deck, const std::string& deck_text, const KeyBlame& blame,
                      RunResult* result, const std::string& failure_note = "");

/// Refuses what run_training would refuse of this deck, as it would, and writes nothing. Collective.
ExitCode check_training(const Communicator& world, const Deck& deck, const KeyBlame& blame);

}  // namespace hat
