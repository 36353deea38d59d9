#include "hat/gradient/slot_table.hpp"

namespace hat {

SlotTable make_slot_table(const ShardPlan& shards, const RolePlan& roles, int64_t slots, PullFormat format) {
  SlotTable table;
  table.window_bytes.assign(shards.parts_of_server.size(), 0);
  for (const Part& part : shards.parts) {
    int64_t& used = table.window_bytes[static_cast<size_t>(part.server)];
    table.parts.push_back({.server_rank = roles.rank_of_server[static_cast<size_t>(part.server)],
                           .offset = used,
                           .count = part.count,
                           .slots = slots,
                           .format = format});
    used += table.parts.back().size_bytes();
  }
  return table;
}

std::vector<PartSlots> append_slots(SlotTable& table, const ShardPlan& shards, const std::vector<bool>& wanted) {
  std::vector<PartSlots> parts = table.parts;
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = shards.parts[p];
    if (!wanted[static_cast<size_t>(part.block)]) {
      parts[p].slots = 0;
      continue;
    }
    int64_t& used = table.window_bytes[static_cast<size_t>(part.server)];
    parts[p].offset = used;
    used += parts[p].size_bytes();
  }
  return parts;
}

}  // namespace hat
