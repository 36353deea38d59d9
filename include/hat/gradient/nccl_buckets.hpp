#pragma once
#include <cstdint>

#include "hat/gradient/barrier_schedule.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Blocks that use a ring in a step leave the backward pass in descending order, and are summed in buckets: as many as
/// come to comm.nccl.bucket_mib together, a larger block alone. All workers come to the same buckets.
/// Whether a bucket ends with `block`, which uses a ring in `step`.
bool ends_bucket(const RunPlan& plan, const BarrierSchedule& barriers, int64_t block, int64_t step);

}  // namespace hat
