#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "hat/core/gang_range.hpp"
#include "hat/ledger/unit_cost_model.hpp"

namespace hat {

/// Tokens [begin, end) of a sequence as the cost model sees them. The areas of all ranges add up to that of the whole,
/// its length squared: a token attends to all before it, so a range costs end^2 - begin^2.
UnitSize size_of_range(int64_t begin, int64_t end);
inline UnitSize size_of(const GangRange& range) { return size_of_range(range.begin(), range.end()); }

/// Cuts a sequence of `length` tokens into as many ranges as there are speeds (GangRange::bounds), so that
/// tokens + area_weight * area over the member's speed is the same of all, but for what rounding to whole tokens makes:
/// less than the cost of one token at either end. No range is empty: of a sequence shorter than the gang, the first
/// `length` members get one token each, and there are no more ranges. Speeds are relative and > 0, length is >= 1.
std::vector<int64_t> equal_cost_bounds(int64_t length, double area_weight, std::span<const double> speeds);

}  // namespace hat
