#pragma once
#include "hat/config/emulation.hpp"
#include "hat/config/option_set.hpp"

namespace hat {

/// Registers worker.emulate.*, comm.emulate.*, cost_of and length_scale.
void add_emulation_keys(OptionSet& options, EmulationConfig& emulation);

/// Refuses keys that change nothing without another one, or contradict it. Throws InputError naming origin and key.
void check_emulation(const OptionSet& options, const EmulationConfig& emulation);

}  // namespace hat
