#include "hat/gradient/node_slots.hpp"

#include <atomic>

#include "hat/core/error.hpp"

namespace hat {

namespace {

constexpr int64_t kHeaderBytes = 64;

int64_t slot_bytes(const BlockSpec& block) {
  return kHeaderBytes + (block.size * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
}

/// Bytes of all slots of all blocks, once.
int64_t table_bytes(const RunPlan& plan) {
  int64_t bytes = 0;
  for (const BlockSpec& block : plan.layout.blocks) bytes += plan.slot_count * slot_bytes(block);
  return bytes;
}

std::atomic_ref<int64_t> word(int64_t& place) { return std::atomic_ref<int64_t>(place); }

}  // namespace

int64_t NodeSlots::bytes(const RunPlan& plan) { return table_bytes(plan) * (plan.deck.delay.predict ? 2 : 1); }

NodeSlots::NodeSlots(const RunPlan& plan, const Communicator& node) : plan_(plan), memory_(node, bytes(plan)) {
  int64_t offset = 0;
  for (const BlockSpec& block : plan.layout.blocks) {
    offsets_.push_back(offset);
    offset += plan.slot_count * slot_bytes(block);
  }
  if (node.rank() == 0) {
    for (size_t block = 0; block < offsets_.size(); ++block) {
      for (const bool predicted : {false, true}) {
        if (predicted && !plan.deck.delay.predict) continue;
        for (int64_t slot = 0; slot < plan.slot_count; ++slot) {
          words(static_cast<int64_t>(block), predicted, slot) = {
              .claimed = kNone, .arriving = kNone, .version = kNone, .push_travel_ns = 0};
        }
      }
    }
  }
  node.barrier();
}

NodeSlots::Words& NodeSlots::words(int64_t block, bool predicted, int64_t version) const {
  const auto b = static_cast<size_t>(block);
  const int64_t at = offsets_[b] + (predicted ? table_bytes(plan_) : 0) +
                     version % plan_.slot_count * slot_bytes(plan_.layout.blocks[b]);
  return *reinterpret_cast<Words*>(memory_.data() + at);  // a slot begins on a multiple of 64 bytes
}

float* NodeSlots::values(int64_t block, bool predicted, int64_t version) const {
  return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(&words(block, predicted, version)) + kHeaderBytes);
}

bool NodeSlots::holds(int64_t block, bool predicted, int64_t version) const {
  return word(words(block, predicted, version).version).load() == version;
}

bool NodeSlots::is_arriving(int64_t block, bool predicted, int64_t version) const {
  Words& slot = words(block, predicted, version);
  return word(slot.arriving).load() == version && word(slot.version).load() != version;
}

bool NodeSlots::claim(int64_t block, bool predicted, int64_t version) const {
  Words& slot = words(block, predicted, version);
  const std::atomic_ref<int64_t> claimed = word(slot.claimed);
  int64_t before = claimed.load();
  if (before == version) return false;
  if (before > version) {
    throw Error(fmt::format("version {} of block {} was overwritten by version {} on its node before it was used",
                            version, plan_.layout.blocks[static_cast<size_t>(block)].name, before));
  }
  if (before != kNone && word(slot.version).load() != before) return false;  // it is still being written
  return claimed.compare_exchange_strong(before, version);
}

double NodeSlots::push_travel_s(int64_t block, bool predicted, int64_t version) const {
  return 1e-9 * static_cast<double>(word(words(block, predicted, version).push_travel_ns).load());
}

void NodeSlots::arriving(int64_t block, bool predicted, int64_t version, double push_travel_s) const {
  Words& slot = words(block, predicted, version);
  word(slot.version).store(kNone);
  word(slot.push_travel_ns).store(static_cast<int64_t>(1e9 * push_travel_s));
  word(slot.arriving).store(version);
}

void NodeSlots::publish(int64_t block, bool predicted, int64_t version) const {
  word(words(block, predicted, version).version).store(version);
}

void NodeSlots::release(int64_t block, bool predicted, int64_t version) const {
  Words& slot = words(block, predicted, version);
  int64_t expected = version;
  word(slot.arriving).compare_exchange_strong(expected, kNone);
  expected = version;
  word(slot.claimed).compare_exchange_strong(expected, kNone);
}

}  // namespace hat
