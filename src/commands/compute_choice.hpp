#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/core/error.hpp"
#include "hat/model/compute_options.hpp"
#include "hat/model/precision_choice.hpp"

namespace hat {

/// What a deck's worker.recompute leaves open, from keeping most to keeping least.
std::vector<Recompute> levels_of(Recompute wanted);
/// The first of them with which `bytes(level)` is at most `limit`.
std::optional<Recompute> first_that_fits(Recompute wanted, const std::function<int64_t(Recompute)>& bytes,
                                         int64_t limit);

/// Times the model's products on every rank that is `measuring`, all at once, each on its device of that index, and
/// gives all ranks the times of the slowest. Collective; an error of any rank is printed, and is the exit code of all.
ExitCode measure_slowest(const Communicator& world, bool measuring, const ModelConfig& model,
                         const ComputeOptions& options, ProductTimes& slowest, int device_index = 0);
/// The arithmetic in which the products took less time.
Element faster_of(const ProductTimes& times);

const char* name_of(PullFormat format);  ///< "fp32", "bf16"

}  // namespace hat
