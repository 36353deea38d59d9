#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Path of optimizer state in a checkpoint: "/optimizer/adamw.m/layers.0.mlp.up.weight".
std::string optimizer_path(const std::string& state, const BlockSpec& block, const TensorSpec& tensor);

/// The slices that a part contributes to a checkpoint, without data: for each tensor piece its values, then its
/// optimizer state in the order of state_names and
/// row_state_names.
std::vector<TensorSlice> checkpoint_slices(const RunPlan& plan, int64_t part);

/// Of all parts, by server.
std::vector<std::vector<TensorSlice>> slices_of_servers(const RunPlan& plan);

/// Global gradient norms that a checkpoint keeps: clip = previous looks back 1 + S steps, and S is at most 64.
inline constexpr int64_t kNormsKept = kMostStaleness + 1;

}  // namespace hat
