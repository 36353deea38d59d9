#pragma once
#include <string>

#include "hat/config/deck.hpp"
#include "hat/core/duration.hpp"

namespace hat {

/// When the run's time is over: by the deck's time_limit, counted from `begin_s`, or by what the Slurm job of this
/// process has left, whichever comes first. Slurm is asked once, for some seconds at most; where it does not answer it
/// sets no limit.
Deadline run_deadline(const Deck& deck, double begin_s);

/// "time limit: 0:59:58 left (Slurm), until 14:03:21; the run stops before that, with a checkpoint"; empty without one.
std::string describe_deadline(const Deadline& deadline);

}  // namespace hat
