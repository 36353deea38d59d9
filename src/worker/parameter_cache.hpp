#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "hat/comm/versioned_slots.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/gradient/run_plan.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// A worker's copies of the parameters, two of each block: one that is computed with, one that a pull writes into.
///   current   read by the pass under way; nobody writes
///   other     written by the pull under way, if there is one; becomes current in `acquire`
class ParameterCache {
 public:
  ParameterCache(const RunPlan& plan, const Device& device, const Window& window, Waiting& waiting);

  /// Which versions will do.
  struct Need {
    int64_t version = 0;  ///< this one, or the oldest that will do
    SlotPull::Rule rule = SlotPull::Rule::exact;
  };

  /// Starts to pull `block` for the next unit, unless it is there or on its way.
  void prefetch(int64_t block, Need need);
  /// Values of `block` in a version that `need` allows; waits for the pull. Valid until the next acquire of the block.
  const float* acquire(int64_t block, Need need);
  /// Version of the values that acquire returned last.
  int64_t version(int64_t block) const;

  /// Advances pulls under way.
  void progress();

  const PullCounters& counters() const { return counters_; }

 private:
  struct Block {
    std::array<DeviceBuffer<float>, 2> values;
    std::array<int64_t, 2> versions{-1, -1};
    int current = 0;
    std::optional<SlotPull> pull;
  };
  static bool satisfies(int64_t version, Need need);
  void start_pull(int64_t index, Need need);
  bool take_if_done(Block& block);

  const RunPlan& plan_;
  const Window& window_;
  Waiting& waiting_;
  std::vector<Block> blocks_;
  PullCounters counters_;
};

}  // namespace hat
