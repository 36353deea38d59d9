#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

/// Keys of the gradient log in `[log]`.
namespace hat {

void add_log_keys(OptionSet& options, LogConfig& log);

}  // namespace hat
