#include "hat/gradient/barrier_schedule.hpp"

#include <algorithm>
#include <iterator>

#include "hat/core/error.hpp"

namespace hat {

BarrierSchedule::BarrierSchedule(const RunPlan& plan)
    : plan_(plan), known_before_(plan.first_step), changes_(plan.layout.blocks.size()) {}

void BarrierSchedule::learn(const std::vector<BarrierChange>& changes, int64_t known_before) {
  for (const BarrierChange& change : changes) {
    changes_[static_cast<size_t>(change.block)][change.step] = change.is_barrier != 0;
  }
  known_before_ = std::max(known_before_, known_before);
}

bool BarrierSchedule::is_barrier(int64_t block, int64_t step) const {
  if (plan_.is_barrier[static_cast<size_t>(block)]) return true;
  if (!plan_.barriers_change()) return false;
  if (!knows(step)) throw Error(fmt::format("the barrier blocks of step {} are not known yet", step));
  const std::map<int64_t, bool>& changes = changes_[static_cast<size_t>(block)];
  const auto later = changes.upper_bound(step);
  return later != changes.begin() && std::prev(later)->second;
}

bool BarrierSchedule::has_rings(int64_t step) const {
  for (int64_t block = 0; block < static_cast<int64_t>(changes_.size()); ++block) {
    if (uses_ring(block, step)) return true;
  }
  return false;
}

int64_t BarrierSchedule::oldest_version(int64_t block, int64_t step) const {
  return is_barrier(block, step) ? step : plan_.oldest_version(block, step);
}

}  // namespace hat
