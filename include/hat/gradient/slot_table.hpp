#pragma once
#include <vector>

#include "hat/comm/roles.hpp"
#include "hat/comm/versioned_slots.hpp"
#include "hat/model/shard_plan.hpp"

namespace hat {

/// Where the versions of every part lie. The same on all ranks, so nobody sends addresses.
struct SlotTable {
  std::vector<PartSlots> parts;       ///< by index in ShardPlan::parts
  std::vector<int64_t> window_bytes;  ///< by server
};

SlotTable make_slot_table(const ShardPlan& shards, const RolePlan& roles, int64_t slots, PullFormat format);

/// A second set of slots, alike, for the parts of the blocks that `wanted` names (by block), behind all others in the
/// windows of `table`. By index in ShardPlan::parts; the other parts have none (slots = 0).
std::vector<PartSlots> append_slots(SlotTable& table, const ShardPlan& shards, const std::vector<bool>& wanted);

}  // namespace hat
