#pragma once
#include <cstdint>

#include "hat/config/deck.hpp"

namespace hat {

/// Factor on the peak learning rate for the update of step `step` (0, 1, ...) of `steps`: linear warm-up, then cosine
/// or linear decay to final_fraction, reached at the last step, or constant.
double schedule_factor(const ScheduleConfig& config, int64_t step, int64_t steps);

}  // namespace hat
