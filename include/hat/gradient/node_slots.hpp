#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hat/comm/shared_memory.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Parameters that the workers of a node keep together: each version of a block comes to the node once and is computed
/// with where it lies (rule exact, staleness bounded). Slots as the servers have them, version v in slot v mod (S + 2),
/// of whole blocks in fp32; with staleness.predict twice, for values as predicted, too.
///
/// A slot has four words, which all workers of the node see:
///   claimed   version that a worker fetches, or fetched last: one worker takes it by compare-and-exchange, once it is
///             published
///   arriving  version whose values are on their way, or came last
///   version   what the slot holds, whole; kNone while something is on its way
///   push_travel_ns   of that version or the arriving one (SlotPublisher::publish)
/// Once a version is published nobody uses the values any more that its slot had (worker/parameter_cache.hpp).
class NodeSlots {
 public:
  static constexpr int64_t kNone = -1;

  /// Collective. `node`: the workers that share, of one node.
  NodeSlots(const RunPlan& plan, const Communicator& node);

  bool holds(int64_t block, bool predicted, int64_t version) const;
  /// Its values are on their way to the slot.
  bool is_arriving(int64_t block, bool predicted, int64_t version) const;
  /// Of a version that it holds or that is arriving.
  double push_travel_s(int64_t block, bool predicted, int64_t version) const;
  float* values(int64_t block, bool predicted, int64_t version) const;
  /// All of it.
  std::span<std::byte> memory() const { return {memory_.data(), static_cast<size_t>(bytes(plan_))}; }

  /// True for one worker, which says `arriving` before it fetches the version, and then `publish`, or `release` to give
  /// it up once nothing is on its way to the slot any more. False, too, while that is so for the version before it.
  /// Throws Error when a later version has taken the slot: the one wanted can never be had again.
  bool claim(int64_t block, bool predicted, int64_t version) const;
  void arriving(int64_t block, bool predicted, int64_t version, double push_travel_s) const;
  void publish(int64_t block, bool predicted, int64_t version) const;
  void release(int64_t block, bool predicted, int64_t version) const;

  /// Of the whole memory that the node's workers share.
  static int64_t bytes(const RunPlan& plan);

 private:
  struct Words {
    int64_t claimed;
    int64_t arriving;
    int64_t version;
    int64_t push_travel_ns;
  };
  Words& words(int64_t block, bool predicted, int64_t version) const;

  const RunPlan& plan_;
  std::vector<int64_t> offsets_;  // by block; predicted ones behind all others
  SharedMemory memory_;
};

}  // namespace hat
