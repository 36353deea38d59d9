#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

namespace hat {

/// Keys of the remedies for delay: staleness.predict, staleness.sync_steps, staleness.compensation and
/// optimizer.momentum_rule.
void add_delay_keys(OptionSet& options, Deck& deck);

/// Throws InputError for a remedy that the rest of the deck leaves nothing to do for, or no way to. Presets are filled.
void check_delay(const OptionSet& options, const Deck& deck);

}  // namespace hat
