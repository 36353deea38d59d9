#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

/// Keys of `[split]`: one sequence computed by several workers at once.
namespace hat {

void add_gang_keys(OptionSet& options, GangConfig& gang);
/// Throws InputError where what is asked for cannot be had.
void check_gang(const OptionSet& options, const Deck& deck);

}  // namespace hat
