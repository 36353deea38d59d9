#pragma once
#include "hat/config/option_set.hpp"
#include "hat/core/fault.hpp"

/// Keys of `[fault]`: what goes wrong on purpose.
namespace hat {

void add_fault_keys(OptionSet& options, FaultConfig& fault);
/// Only messages can be lost, and only writes fail.
void check_fault(const OptionSet& options, const FaultConfig& fault);

}  // namespace hat
