#include "worker/parameter_cache.hpp"

#include <utility>

namespace hat {

ParameterCache::ParameterCache(const RunPlan& plan, int world_rank, const Device& device, const Window& window,
                               Waiting& waiting)
    : plan_(plan), window_(window), waiting_(waiting) {
  for (size_t b = 0; b < plan_.layout.blocks.size(); ++b) {
    Block& block = blocks_.emplace_back();
    if (plan_.reads_in_place(static_cast<int64_t>(b), world_rank)) {
      const auto part = static_cast<size_t>(plan_.shards.parts_of_block[b].front());
      block.own.emplace(window_, plan_.slots.parts[part]);
      if (plan_.deck.delay.predict) block.own_predicted.emplace(window_, plan_.predicted_slots[part]);
      continue;
    }
    for (DeviceBuffer<float>& values : block.values) {
      values = DeviceBuffer<float>(device, plan_.layout.blocks[b].size);
    }
  }
}

bool ParameterCache::Block::satisfies(Need need) const {
  const int64_t version = versions[static_cast<size_t>(current)];
  if (predicted[static_cast<size_t>(current)] != need.predicted) return false;
  return need.rule == SlotPull::Rule::exact ? version == need.version : version >= need.version;
}

void ParameterCache::start_pull(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  float* other = block.values[static_cast<size_t>(1 - block.current)].data();
  std::vector<SlotPull::Target> targets;
  for (const int64_t part : plan_.shards.parts_of_block[static_cast<size_t>(index)]) {
    const auto p = static_cast<size_t>(part);
    targets.push_back({.part = plan_.slots_of(need.predicted)[p], .values = other + plan_.shards.parts[p].begin});
  }
  const int64_t have = block.versions[static_cast<size_t>(block.current)];
  block.pulls_predicted = need.predicted;
  block.pull.emplace(window_, std::move(targets), need.version, need.rule, have, counters_);
}

void ParameterCache::prefetch(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  if (block.own || block.pull) return;
  if (need.rule == SlotPull::Rule::exact && block.satisfies(need)) return;
  start_pull(index, need);
}

// A finished pull is taken over only here, between passes: during a pass the current copy must stay where it is.
bool ParameterCache::take_if_done(Block& block) {
  if (!block.pull->step()) return false;
  const int64_t version = block.pull->version();
  block.pull.reset();
  const auto now = static_cast<size_t>(block.current);
  // Nothing newer: still the same copy.
  if (version == block.versions[now] && block.pulls_predicted == block.predicted[now]) return true;
  block.current = 1 - block.current;
  block.versions[static_cast<size_t>(block.current)] = version;
  block.predicted[static_cast<size_t>(block.current)] = block.pulls_predicted;
  return true;
}

const float* ParameterCache::acquire_in_place(Block& block, Need need, const std::string& what) {
  const OwnSlots& own = block.own_slots(need.predicted);
  waiting_.until(Activity::wait_pull, what, [&] { return own.latest() >= need.version; });
  const int64_t version = need.rule == SlotPull::Rule::exact ? need.version : own.latest();
  if (!own.holds(version)) throw Error(fmt::format("{} was overwritten before it was read in place", what));
  block.versions[static_cast<size_t>(block.current)] = version;
  block.predicted[static_cast<size_t>(block.current)] = need.predicted;
  return own.values(version);
}

const float* ParameterCache::acquire(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  const std::string what =
      fmt::format("version {} of block {}", need.version, plan_.layout.blocks[static_cast<size_t>(index)].name);
  if (block.own) return acquire_in_place(block, need, what);
  // A prefetch for something else (a lease came back, validation came between) is finished first: it may be writing.
  while (block.pull || !block.satisfies(need)) {
    if (!block.pull) start_pull(index, need);
    waiting_.until(Activity::wait_pull, what, [&] { return take_if_done(block); });
  }
  return block.values[static_cast<size_t>(block.current)].data();
}

int64_t ParameterCache::version(int64_t index) const {
  const Block& block = blocks_[static_cast<size_t>(index)];
  const int64_t version = block.versions[static_cast<size_t>(block.current)];
  if (block.own && !block.own_slots(block.predicted[static_cast<size_t>(block.current)]).holds(version)) {
    throw Error(fmt::format("version {} of block {} was overwritten while it was read in place", version,
                            plan_.layout.blocks[static_cast<size_t>(index)].name));
  }
  return version;
}

void ParameterCache::progress() {
  for (Block& block : blocks_) {
    if (block.pull) block.pull->step();
  }
}

}  // namespace hat
