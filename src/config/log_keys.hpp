#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

/// Keys of the gradient log in `[log]`.
namespace hat {

void add_log_keys(OptionSet& options, LogConfig& log);
/// Throws InputError where what is asked for cannot be had.
void check_log(const OptionSet& options, const Deck& deck);

}  // namespace hat
