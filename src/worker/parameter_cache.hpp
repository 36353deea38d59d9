#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hat/comm/versioned_slots.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/gradient/run_plan.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// A worker's view of the parameters. Of a block that lies elsewhere, in several parts or in bf16, it has two copies:
/// one that is computed with, one that a pull writes into.
///   current   read by the pass under way; nobody writes
///   other     written by the pull under way, if there is one; becomes current in `acquire`
///
/// A block whose slots are in this process (RunPlan::reads_in_place) is computed with where it lies, without a copy. No
/// pass sees such a slot change. Let a unit of step t be under way:
///   - it uses a version v >= t - S (oldest_version, Worker::need)
///   - version w + 1 of a block comes from step w, whose update begins when every worker has pushed all its units of
///     the steps up to w for this block (GradientSum::complete; steps of a part are applied in order). This worker
///     pushes the gradient when the backward pass has left the block for good. So as long as the pass may read the
///     block, the newest slot that was opened is that of version t
///   - version t lies where version t - (S + 2) was, and v is younger. (Nor would t + 1 touch it: one slot to spare)
///   - validation and the sample use version t at a pause: every push is applied, and nothing is leased for training
///     before they have reported
///   - the lease of the next unit is known before the backward pass, but opens no slot, and nothing is prefetched: what
///     it needs is looked up in `acquire`, when the pass before has ended
/// The server progresses inside this worker's calls of Waiting, on the same thread: what it wrote is seen, and slots
/// are opened only there. With unbounded staleness any push may open a slot, so copies stay. `version`, which is asked
/// when the backward pass has left a block, checks that its slot stayed.
class ParameterCache {
 public:
  /// `world_rank`: of this worker, in the communicator of `window`.
  ParameterCache(const RunPlan& plan, int world_rank, const Device& device, const Window& window, Waiting& waiting);

  /// Which versions will do.
  struct Need {
    int64_t version = 0;  ///< this one, or the oldest that will do
    SlotPull::Rule rule = SlotPull::Rule::exact;
    bool predicted = false;  ///< exact only: as servers predict it (staleness.predict), from slots of its own
  };

  /// Starts to pull `block` for the next unit, unless it is there, on its way, or read in place.
  void prefetch(int64_t block, Need need);
  /// Values of `block` in a version that `need` allows; waits for it. Valid until the next acquire of the block. In
  /// place and under the rule freshest it is the newest version there is now. Throws Error when it was overwritten.
  const float* acquire(int64_t block, Need need);
  /// Version of the values that acquire returned last. Throws Error when they have changed since (in place).
  int64_t version(int64_t block) const;

  /// Advances pulls under way.
  void progress();

  const PullCounters& counters() const { return counters_; }

 private:
  struct Block {
    std::optional<OwnSlots> own;            // read in place: no copies, no pulls
    std::optional<OwnSlots> own_predicted;  // beside it, where predictions are published
    std::array<DeviceBuffer<float>, 2> values;
    std::array<int64_t, 2> versions{-1, -1};
    std::array<bool, 2> predicted{};
    int current = 0;
    std::optional<SlotPull> pull;
    bool pulls_predicted = false;

    const OwnSlots& own_slots(bool of_predicted) const { return of_predicted ? *own_predicted : *own; }
    bool satisfies(Need need) const;
  };
  const float* acquire_in_place(Block& block, Need need, const std::string& what);
  void start_pull(int64_t index, Need need);
  bool take_if_done(Block& block);

  const RunPlan& plan_;
  const Window& window_;
  Waiting& waiting_;
  std::vector<Block> blocks_;
  PullCounters counters_;
};

}  // namespace hat
