#pragma once
#include "hat/config/option_set.hpp"
#include "hat/core/fault.hpp"

/// Keys of `[fault]`: a rank that dies on purpose.
namespace hat {

void add_fault_keys(OptionSet& options, FaultConfig& fault);

}  // namespace hat
