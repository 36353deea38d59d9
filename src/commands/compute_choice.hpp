#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hat/model/compute_options.hpp"
#include "hat/model/precision_choice.hpp"

namespace hat {

/// What a deck's worker.recompute leaves open, from keeping most to keeping least.
std::vector<Recompute> levels_of(Recompute wanted);
/// The first of them with which `bytes(level)` is at most `limit`.
std::optional<Recompute> first_that_fits(Recompute wanted, const std::function<int64_t(Recompute)>& bytes,
                                         int64_t limit);

/// The arithmetic in which the products took less time.
Element faster_of(const ProductTimes& times);

const char* name_of(Element arithmetic);   ///< "fp32", "bf16"
const char* name_of(Recompute recompute);  ///< "none", "inner", "full"
const char* name_of(PullFormat format);    ///< "fp32", "bf16"

}  // namespace hat
