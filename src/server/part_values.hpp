#pragma once
#include <cstdint>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/optimizer/optimizer.hpp"
#include "hat/server/replay.hpp"

namespace hat {

// One part of a shard with its optimizer, as a run keeps it and as it stands in checkpoints.

/// Start values of the part.
void initialize_part(const RunPlan& plan, int64_t part, float* values);
/// Values and optimizer state as they were saved.
void restore_part(const RunPlan& plan, int64_t part, const TensorSource& saved, Optimizer& optimizer, float* values);
/// Values and state as checkpoint slices, which point into both.
std::vector<TensorSlice> part_slices(const RunPlan& plan, int64_t part, Optimizer& optimizer, const float* values);

}  // namespace hat
