#pragma once
#include <cstdint>
#include <span>

#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Noise for tests and demonstrations (sensitivity.noise_*): where the deck asks for it in this block and step, adds
/// independent normal values to the gradient, together as long as noise_scale times the gradient. They depend on the
/// seed, the unit (the last one in the gradient) and the element.
void plant_noise(const RunPlan& plan, int64_t block, int64_t step, int64_t unit, std::span<float> gradient);

}  // namespace hat
