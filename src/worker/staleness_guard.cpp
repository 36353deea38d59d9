#include "worker/staleness_guard.hpp"

#include <algorithm>
#include <utility>

#include "hat/core/clock.hpp"
#include "hat/gradient/staleness_limit.hpp"

namespace hat {

StalenessGuard::StalenessGuard(const RunPlan& plan, const Window& window, Waiting& waiting)
    : plan_(plan), window_(window), waiting_(waiting), blocks_(plan.layout.blocks.size()) {}

void StalenessGuard::asked_ahead(int64_t block) {
  if (plan_.unbounded()) blocks_[static_cast<size_t>(block)].asked_s.push_back(now_s());
}

void StalenessGuard::asked(int64_t block) {
  if (blocks_[static_cast<size_t>(block)].asked_s.empty()) asked_ahead(block);
}

void StalenessGuard::took(int64_t block, int64_t version) {
  if (!plan_.unbounded()) return;
  Block& state = blocks_[static_cast<size_t>(block)];
  state.used_version = version;
  state.used_asked_s = state.asked_s.front();
  state.asked_s.pop_front();
}

double StalenessGuard::age_s(int64_t block) const { return now_s() - blocks_[static_cast<size_t>(block)].used_asked_s; }

// 8 bytes a part. A block that lies in several parts is as new as the oldest of them: that is what a pull can get.
void StalenessGuard::look() {
  latest_.resize(plan_.slots.parts.size());
  gets_.clear();
  for (size_t part = 0; part < latest_.size(); ++part) {
    const PartSlots& slots = plan_.slots.parts[part];
    gets_.push_back(
        window_.start_get(std::as_writable_bytes(std::span(&latest_[part], 1)), slots.server_rank, slots.offset));
  }
  waiting_.until(Activity::wait_pull, "the newest versions of all blocks",
                 [&] { return std::all_of(gets_.begin(), gets_.end(), [](Request& get) { return get.test(); }); });
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const std::vector<int64_t>& parts = plan_.shards.parts_of_block[block];
    blocks_[block].latest = latest_[static_cast<size_t>(parts.front())];
    for (const int64_t part : parts) {
      blocks_[block].latest = std::min(blocks_[block].latest, latest_[static_cast<size_t>(part)]);
    }
  }
}

bool StalenessGuard::must_recompute() {
  const StalenessLimitConfig& limit = plan_.deck.staleness_limit;
  if (limit.action != OverLimit::recompute || recomputed_ == kMostTimes) return false;
  look();
  const double now = now_s();
  const bool over = std::ranges::any_of(blocks_, [&](const Block& block) {
    return is_over(limit, {.versions = block.latest - block.used_version, .seconds = now - block.used_asked_s});
  });
  if (!over) return false;
  for (Block& block : blocks_) {  // what was asked for ahead is not taken: it may be older than `oldest`
    block.oldest = block.latest;
    block.asked_s.assign(1, now);
  }
  ++recomputed_;
  return true;
}

int64_t StalenessGuard::finish_unit() {
  for (Block& block : blocks_) block.oldest = 0;
  return std::exchange(recomputed_, 0);
}

}  // namespace hat
