#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

namespace hat {

/// The deck of a run pins what the mode of that run preset. With another mode nearer to the user (--mode, to continue
/// the run) what the two cannot have together is told at once, as the options that are missing. Throws
/// InputError.
void check_mode_change(const OptionSet& options, const Deck& deck);

}  // namespace hat
