#include "hat/gradient/nccl_buckets.hpp"

namespace hat {

bool ends_bucket(const RunPlan& plan, const BarrierSchedule& barriers, int64_t block, int64_t step) {
  constexpr double kMiB = 1024 * 1024;
  const auto most = static_cast<int64_t>(plan.deck.nccl.bucket_mib * kMiB / sizeof(float));  // elements
  int64_t filled = 0;
  for (auto b = static_cast<int64_t>(plan.layout.blocks.size()) - 1; b >= 0; --b) {
    if (!barriers.uses_ring(b, step)) continue;
    const int64_t size = plan.layout.blocks[static_cast<size_t>(b)].size;
    const bool begins_next = filled > 0 && filled + size > most;
    if (b < block) return begins_next;
    filled = begins_next ? size : filled + size;
  }
  return true;  // the last of the step
}

}  // namespace hat
