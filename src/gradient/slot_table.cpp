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

}  // namespace hat
