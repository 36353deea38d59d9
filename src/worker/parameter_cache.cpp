#include "worker/parameter_cache.hpp"

#include <algorithm>
#include <utility>

#include "hat/core/fault.hpp"

namespace hat {

ParameterCache::ParameterCache(const RunPlan& plan, int world_rank, const Device& device, const Window& window,
                               const NodeSlots* node, Waiting& waiting)
    : plan_(plan), window_(window), node_(node), waiting_(waiting) {
  for (size_t b = 0; b < plan_.layout.blocks.size(); ++b) {
    Block& block = blocks_.emplace_back();
    if (plan_.reads_in_place(static_cast<int64_t>(b), world_rank)) {
      const auto part = static_cast<size_t>(plan_.shards.parts_of_block[b].front());
      block.own.emplace(window_, plan_.slots.parts[part]);
      if (plan_.deck.delay.predict) block.own_predicted.emplace(window_, plan_.predicted_slots[part]);
    }
    const bool copies = !block.own && node_ == nullptr;
    block.copies = std::vector<Copy>(copies ? static_cast<size_t>(plan_.deck.prefetch_depth) + 1 : 1);
    if (!copies) continue;
    for (Copy& copy : block.copies) copy.values = PinnedBuffer<float>(device, plan_.layout.blocks[b].size);
  }
}

int64_t ParameterCache::bytes(int64_t block) const {
  const int64_t value = plan_.deck.pull_format == PullFormat::fp32 ? 4 : 2;
  return plan_.layout.blocks[static_cast<size_t>(block)].size * value;
}

bool ParameterCache::Block::satisfies(Need need) const {
  const Copy& copy = copies[current];
  if (copy.predicted != need.predicted) return false;
  return need.rule == SlotPull::Rule::exact ? copy.version == need.version : copy.version >= need.version;
}

std::optional<size_t> ParameterCache::Block::spare_copy() const {
  for (size_t copy = 0; copy < copies.size(); ++copy) {
    // The only copy (prefetch.depth = 0) is pulled into between passes, when nobody reads it.
    const bool taken =
        (copy == current && copies.size() > 1) || (expected && expected->copy == copy) ||
        std::ranges::any_of(ahead, [&](const Ahead& a) { return a.copy == copy; }) ||
        std::ranges::any_of(given_up, [&](const Ahead& a) { return a.copy == copy && a.pull->is_writing(); });
    if (!taken) return copy;
  }
  return std::nullopt;
}

SlotPull ParameterCache::start_pull(int64_t index, Need need, float* values) {
  fault_point(FaultPoint::pull);
  const Block& block = blocks_[static_cast<size_t>(index)];
  std::vector<SlotPull::Target> targets;
  for (const int64_t part : plan_.shards.parts_of_block[static_cast<size_t>(index)]) {
    const auto p = static_cast<size_t>(part);
    targets.push_back({.part = plan_.slots_of(need.predicted)[p], .values = values + plan_.shards.parts[p].begin});
  }
  // Under the rule freshest nothing is read when the copy at hand is still the newest.
  const int64_t have = need.rule == SlotPull::Rule::freshest ? block.copies[block.current].version : -1;
  return {window_, std::move(targets), need.version, need.rule, have, counters_};
}

ParameterCache::Ahead ParameterCache::begin_pull(int64_t index, Need need, size_t copy) {
  Block& block = blocks_[static_cast<size_t>(index)];
  Copy& target = block.copies[copy];
  if (before_pull_) before_pull_(index);
  SlotPull pull = start_pull(index, need, target.values.data());
  if (copy != block.current) target.version = -1;  // the only copy stays what it is if there is nothing newer
  return {.need = need,
          .copy = copy,
          .pull = std::move(pull),
          .begin_s = now_s(),
          .have = block.copies[block.current].version};
}

/// False if all copies are taken.
bool ParameterCache::add_ahead(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  const bool same = block.ahead.empty() ? block.satisfies(need) : block.ahead.back().need == need;
  if (block.expected && !same) {
    if (block.expected->need == need) {
      block.ahead.push_back(*std::exchange(block.expected, std::nullopt));
      return true;
    }
    stop_expecting(index);  // the unit is of a later step: servers may pass the version
  }
  if (node_ != nullptr) {
    Ahead& ahead = block.ahead.emplace_back(Ahead{.need = need, .pull = {}});
    advance_on_node(index, ahead);
    return true;
  }
  if (need.rule == SlotPull::Rule::exact && same) {
    const size_t copy = block.ahead.empty() ? block.current : block.ahead.back().copy;
    block.ahead.push_back({.need = need, .copy = copy, .pull = {}});
    ++counters_.skipped;
    counters_.skipped_bytes += bytes(index);
    return true;
  }
  const std::optional<size_t> copy = block.spare_copy();
  if (!copy) return false;
  block.ahead.push_back(begin_pull(index, need, *copy));
  return true;
}

void ParameterCache::prefetch(int64_t index, Need need) {
  if (blocks_[static_cast<size_t>(index)].own || plan_.deck.prefetch_depth == 0) return;
  if (add_ahead(index, need)) ++counters_.guesses;
}

void ParameterCache::expect(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  if (block.own || block.expected || plan_.deck.prefetch_depth == 0) return;
  const bool known = block.ahead.empty() ? block.satisfies(need) : block.ahead.back().need == need;
  if (known) return;
  if (node_ != nullptr) {
    block.expected.emplace(Ahead{.need = need, .pull = {}});
    advance_on_node(index, *block.expected);
    return;
  }
  if (const std::optional<size_t> copy = block.spare_copy()) block.expected = begin_pull(index, need, *copy);
}

void ParameterCache::stop_expecting() {
  for (int64_t index = 0; index < std::ssize(blocks_); ++index) stop_expecting(index);
}

void ParameterCache::stop_expecting(int64_t index) {
  std::optional<Ahead>& expected = blocks_[static_cast<size_t>(index)].expected;
  if (!expected) return;
  give_up(index, *std::exchange(expected, std::nullopt));
  ++counters_.guesses;
  ++counters_.wrong_guesses;
}

/// Nobody waits for it any more. (Most have nothing under way but a header, or nothing.)
void ParameterCache::give_up(int64_t index, Ahead ahead) {
  if (!ahead.pull) return;
  blocks_[static_cast<size_t>(index)].given_up.push_back(std::move(ahead));
  end_given_up(index);
}

// The next worker that fetches writes to the same slot of the node: it is released once nothing is on its way there.
void ParameterCache::end_given_up(int64_t index) {
  std::erase_if(blocks_[static_cast<size_t>(index)].given_up, [&](Ahead& ahead) {
    if (!ahead.pull->try_end()) return false;
    if (ahead.fetches) node_->release(index, ahead.need.predicted, ahead.need.version);
    return true;
  });
}

// Validation came between, or a unit is computed again.
void ParameterCache::drop_wrong_guesses(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  while (!block.ahead.empty() && block.ahead.front().need != need) {
    give_up(index, std::move(block.ahead.front()));
    block.ahead.pop_front();
    ++counters_.wrong_guesses;
  }
}

const float* ParameterCache::acquire_in_place(Block& block, Need need, const std::string& what) {
  const OwnSlots& own = block.own_slots(need.predicted);
  waiting_.until(Activity::wait_barrier, what, [&] {
    if (own.latest() < need.version) return false;
    if (own.holds(need.version)) waiting_.push_travelled(own.push_travel_s(need.version));
    return true;
  });
  const int64_t version = need.rule == SlotPull::Rule::exact ? need.version : own.latest();
  if (!own.holds(version)) throw Error(fmt::format("{} was overwritten before it was read in place", what));
  block.copies[block.current].version = version;
  block.copies[block.current].predicted = need.predicted;
  return own.values(version);
}

// A finished pull is taken over only here, between passes: during a pass the current copy must stay where it is.
const float* ParameterCache::acquire_copy(int64_t index, Need need, const std::string& what) {
  Block& block = blocks_[static_cast<size_t>(index)];
  if (block.ahead.empty() && !add_ahead(index, need)) {  // pulls that were given up still write to the copies
    waiting_.until(Activity::wait_pull, what, [&] { return add_ahead(index, need); });
  }
  Ahead& first = block.ahead.front();
  const auto finish = [&] {
    waiting_.until(Activity::wait_barrier, what, [&] {
      if (!first.pull->find()) return false;
      waiting_.push_travelled(first.pull->push_travel_s());
      return true;
    });
    waiting_.until(Activity::wait_pull, what, [&] { return advance_pull(index, first); });
  };
  if (first.pull) finish();
  // There was nothing newer than the copy of that moment, but a unit between (of a gang: exact) took an older one.
  if (first.pull && first.pull->unchanged() && block.copies[block.current].version != first.have) {
    first = begin_pull(index, need, first.copy);
    finish();
  }
  if (first.pull && first.pull->unchanged()) {
    ++counters_.skipped;
    counters_.skipped_bytes += bytes(index);
  } else {
    block.current = first.copy;
    block.copies[block.current].version = first.pull ? first.pull->version() : need.version;
    block.copies[block.current].predicted = need.predicted;
  }
  block.ahead.pop_front();
  return block.copies[block.current].values.data();
}

/// True once the whole block has come.
bool ParameterCache::advance_pull(int64_t index, Ahead& ahead) {
  if (!ahead.pull->step()) return false;
  const bool came = !ahead.is_here && !ahead.pull->unchanged();
  if (came && trace_ != nullptr) trace_->pulled(index, ahead.pull->version(), ahead.begin_s);
  ahead.is_here = true;
  return true;
}

/// True once what is needed is on its way to the slot of the node, or there. Fetches it if no other worker does; only a
/// version that is published is claimed, so that nobody waits for a server through another worker. (Who claims ahead,
/// beside computing, moves the pull on between blocks.)
bool ParameterCache::find_on_node(int64_t index, Ahead& ahead) {
  const auto [version, rule, predicted] = ahead.need;
  if (ahead.fetches) return true;
  if (node_->holds(index, predicted, version) || node_->is_arriving(index, predicted, version)) {
    if (ahead.pull) give_up(index, {.need = ahead.need, .pull = *std::exchange(ahead.pull, std::nullopt)});
    return true;
  }
  if (!ahead.pull) {
    ahead.pull.emplace(start_pull(index, ahead.need, node_->values(index, predicted, version)));
    ahead.begin_s = now_s();
  }
  if (!ahead.pull->find() || !node_->claim(index, predicted, version)) return false;
  node_->arriving(index, predicted, version, ahead.pull->push_travel_s());
  ahead.fetches = true;
  return true;
}

/// True once the slot of the node has what is needed.
bool ParameterCache::advance_on_node(int64_t index, Ahead& ahead) {
  const auto [version, rule, predicted] = ahead.need;
  if (!find_on_node(index, ahead)) return false;
  if (!ahead.pull) return node_->holds(index, predicted, version);  // another worker fetches it, or this one has
  if (!advance_pull(index, ahead)) return false;
  ahead.pull.reset();
  node_->publish(index, predicted, version);
  return true;
}

const float* ParameterCache::acquire_on_node(int64_t index, Need need, const std::string& what) {
  Block& block = blocks_[static_cast<size_t>(index)];
  if (block.ahead.empty()) add_ahead(index, need);
  Ahead& first = block.ahead.front();
  waiting_.until(Activity::wait_barrier, what, [&] {
    if (!find_on_node(index, first)) return false;
    waiting_.push_travelled(node_->push_travel_s(index, need.predicted, need.version));
    return true;
  });
  waiting_.until(Activity::wait_pull, what, [&] { return advance_on_node(index, first); });
  if (!first.fetches) {
    ++counters_.skipped;
    counters_.skipped_bytes += bytes(index);
  }
  block.ahead.pop_front();
  block.copies[block.current].version = need.version;
  block.copies[block.current].predicted = need.predicted;
  return node_->values(index, need.predicted, need.version);
}

const float* ParameterCache::acquire(int64_t index, Need need) {
  Block& block = blocks_[static_cast<size_t>(index)];
  const std::string what =
      fmt::format("version {} of block {}", need.version, plan_.layout.blocks[static_cast<size_t>(index)].name);
  drop_wrong_guesses(index, need);
  return block.own          ? acquire_in_place(block, need, what)
         : node_ != nullptr ? acquire_on_node(index, need, what)
                            : acquire_copy(index, need, what);
}

std::optional<ParameterCache::Arrived> ParameterCache::arrived(int64_t index) const {
  const Block& block = blocks_[static_cast<size_t>(index)];
  if (block.own || node_ != nullptr || block.ahead.empty()) return std::nullopt;
  const Ahead& next = block.ahead.front();
  if (!next.pull || !next.is_here || next.pull->unchanged()) return std::nullopt;
  return Arrived{.values = block.copies[next.copy].values.data(),
                 .version = next.pull->version(),
                 .predicted = next.need.predicted};
}

int64_t ParameterCache::version(int64_t index) const {
  const Block& block = blocks_[static_cast<size_t>(index)];
  const Copy& copy = block.copies[block.current];
  const bool holds = block.own          ? block.own_slots(copy.predicted).holds(copy.version)
                     : node_ != nullptr ? node_->holds(index, copy.predicted, copy.version)
                                        : true;
  if (!holds) {
    throw Error(fmt::format("version {} of block {} was overwritten while it was read in place", copy.version,
                            plan_.layout.blocks[static_cast<size_t>(index)].name));
  }
  return copy.version;
}

/// Of a unit to come; true once it is here.
bool ParameterCache::advance(int64_t index, Ahead& ahead) {
  if (node_ != nullptr) return advance_on_node(index, ahead);
  return !ahead.pull || advance_pull(index, ahead);
}

void ParameterCache::progress() {
  for (int64_t index = 0; index < std::ssize(blocks_); ++index) {
    Block& block = blocks_[static_cast<size_t>(index)];
    for (Ahead& ahead : block.ahead) advance(index, ahead);
    if (block.expected) advance(index, *block.expected);
    end_given_up(index);
  }
}

void ParameterCache::finish() {
  stop_expecting();
  for (int64_t index = 0; index < std::ssize(blocks_); ++index) {
    std::deque<Ahead>& ahead = blocks_[static_cast<size_t>(index)].ahead;
    for (Ahead& pull : ahead) give_up(index, std::move(pull));
    counters_.wrong_guesses += std::ssize(ahead);
    ahead.clear();
  }
  waiting_.until(Activity::wait_pull, "pulls that were given up to end", [this] {
    progress();
    return std::ranges::all_of(blocks_, [](const Block& block) { return block.given_up.empty(); });
  });
}

}  // namespace hat
