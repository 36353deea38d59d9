#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hat/comm/versioned_slots.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/gradient/node_slots.hpp"
#include "hat/gradient/run_plan.hpp"
#include "worker/waiting.hpp"
#include "worker/worker_trace.hpp"

namespace hat {

/// A worker's view of the parameters. Of a block that lies elsewhere it has 1 + prefetch.depth copies:
///   current   read by the pass under way; nobody writes
///   others    written by pulls for the units to come, in their order; the first becomes current in `acquire`
/// All in memory of the host: where the worker computes on another device, DeviceParameters copies from here.
/// Workers that share memory may keep them together (NodeSlots): one of them pulls a version, all compute with it where
/// it lies.
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
///   - the lease of the next unit may come at any time, but opens no slot, and nothing is prefetched: what it needs is
///     looked up in `acquire`, when the pass before has ended
/// A slot of a NodeSlots is written for version v only when v is published, so the same holds for what lies in it.
/// The server progresses inside this worker's calls of Waiting, on the same thread: what it wrote is seen, and slots
/// are opened only there. With unbounded staleness any push may open a slot, so copies stay. `version`, which is asked
/// when the backward pass has left a block, checks that its slot stayed.
class ParameterCache {
 public:
  /// `world_rank`: of this worker, in the communicator of `window`. `node`: shared with others, or nullptr.
  ParameterCache(const RunPlan& plan, int world_rank, const Device& device, const Window& window, const NodeSlots* node,
                 Waiting& waiting);
  /// Pulls are recorded there from now on; null: nowhere.
  void set_trace(WorkerTrace* trace) { trace_ = trace; }
  /// To be called before a pull of a block may overwrite what `arrived` gave of it; may block.
  void set_before_pull(std::function<void(int64_t block)> call) { before_pull_ = std::move(call); }

  /// Which versions will do.
  struct Need {
    int64_t version = 0;  ///< this one, or the oldest that will do
    SlotPull::Rule rule = SlotPull::Rule::exact;
    bool predicted = false;  ///< exact only: as servers predict it (staleness.predict), from slots of its own
    bool operator==(const Need&) const = default;
  };

  /// Starts to pull `block` for a unit to come, behind those asked for before, unless it is there, on its way, or read
  /// in place. At most prefetch.depth can be ahead; what is more is pulled when it is acquired.
  void prefetch(int64_t block, Need need);
  /// Starts to pull `block` for the worker's next step, of which no unit is leased yet, if a copy is to spare. So what
  /// is published early comes while the links have nothing else to do. Rule exact only. The caller has a unit whose
  /// step keeps servers from overwriting that version, or calls `stop_expecting`.
  void expect(int64_t block, Need need);
  /// What `expect` has asked for is given up. A worker without a unit holds nobody up: servers may pass the versions
  /// that it expected.
  void stop_expecting();
  /// Values of `block` in a version that `need` allows; waits for it: until it is published as wait_barrier, for its
  /// way here as wait_pull. Valid until the next acquire of the block. In place and under the rule freshest it is the
  /// newest version there is now. Throws Error when it was overwritten.
  const float* acquire(int64_t block, Need need);
  /// What a pull has brought for the next unit, if it is in a copy of this worker's own.
  struct Arrived {
    const float* values;
    int64_t version;
    bool predicted;
  };
  std::optional<Arrived> arrived(int64_t block) const;
  /// Version of the values that acquire returned last. Throws Error when they have changed since (in place).
  int64_t version(int64_t block) const;

  /// Advances pulls under way.
  void progress();
  /// Gives up all that was asked for ahead and waits until nothing is under way. To be called before the worker leaves:
  /// what others wait for in slots of the node must not stay half done.
  void finish();

  const PullCounters& counters() const { return counters_; }

 private:
  struct Copy {
    PinnedBuffer<float> values;
    int64_t version = -1;
    bool predicted = false;
  };
  /// For a unit to come.
  struct Ahead {
    Need need;
    size_t copy = 0;               // not of node slots
    std::optional<SlotPull> pull;  // none: it is there, or (node slots) another worker fetches it
    bool fetches = false;          // node slots: this worker has claimed it, fetches it, or has
    double begin_s = 0;            // of the pull, for the trace
    int64_t have = -1;             // version of the current copy when the pull began: nothing newer means that one
    bool is_here = false;
  };
  struct Block {
    std::optional<OwnSlots> own;            // read in place: no copies, no pulls
    std::optional<OwnSlots> own_predicted;  // beside it, where predictions are published
    std::vector<Copy> copies;               // one, without values, where blocks are not copied
    size_t current = 0;
    std::deque<Ahead> ahead;
    std::optional<Ahead> expected;  // for a unit behind those
    std::vector<Ahead> given_up;    // their gets have not ended; what they write to is taken until then

    const OwnSlots& own_slots(bool of_predicted) const { return of_predicted ? *own_predicted : *own; }
    bool satisfies(Need need) const;
    /// A copy that is neither current nor ahead nor expected nor written to, if there is one.
    std::optional<size_t> spare_copy() const;
  };
  const float* acquire_in_place(Block& block, Need need, const std::string& what);
  const float* acquire_copy(int64_t index, Need need, const std::string& what);
  const float* acquire_on_node(int64_t index, Need need, const std::string& what);
  bool add_ahead(int64_t index, Need need);
  Ahead begin_pull(int64_t index, Need need, size_t copy);
  void give_up(int64_t index, Ahead ahead);
  void end_given_up(int64_t index);
  void stop_expecting(int64_t index);
  bool advance(int64_t index, Ahead& ahead);
  SlotPull start_pull(int64_t index, Need need, float* values);
  void drop_wrong_guesses(int64_t index, Need need);
  bool find_on_node(int64_t index, Ahead& ahead);
  bool advance_on_node(int64_t index, Ahead& ahead);
  bool advance_pull(int64_t index, Ahead& ahead);
  int64_t bytes(int64_t block) const;

  const RunPlan& plan_;
  const Window& window_;
  const NodeSlots* node_;
  Waiting& waiting_;
  std::deque<Block> blocks_;
  PullCounters counters_;
  WorkerTrace* trace_ = nullptr;
  std::function<void(int64_t)> before_pull_;
};

}  // namespace hat
