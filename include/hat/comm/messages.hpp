#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hat/core/sequence.hpp"

namespace hat {

/// Everything that servers and workers say to each other. Each message lists its fields once, in `fields`, for both
/// directions (mailbox.hpp). Gradient values travel behind a PushHeader on their own tag; parameters by RMA.

enum class MessageKind : int32_t {
  lease_request,
  lease,
  push,
  unit_report,
  evaluation_report,
  norm_share,
  norm_total,
  step_complete,
  checkpoint_written,
  worker_summary,
  alive,
  shutdown,
  gradient_sketch,
  stop_request,
  stop_at,
  computed_unit,
};

/// worker -> server 0: what shall I do next?
struct LeaseRequest {
  static constexpr MessageKind kKind = MessageKind::lease_request;
  int64_t worker = 0;
  bool idle = false;        ///< has nothing left to compute: the answer may wait until there is something
  int64_t closed_step = 0;  ///< the worker has pushed everything it had, and entered all rings, of the steps before
  template <class F>
  void fields(F& f) {
    f(worker), f(idle), f(closed_step);
  }
};

enum class LeaseKind : int32_t {
  train,     ///< compute this unit
  evaluate,  ///< loss of these validation sequences with version `step` of every block
  none,      ///< nothing before step `step`: finish what is open, then ask again as idle
  finish,    ///< nothing more at all
};

/// From step `step` on the block is a barrier block (1), or no longer (0).
struct BarrierChange {
  int64_t step = 0;
  int64_t block = 0;
  int64_t is_barrier = 0;
};

/// A worker that computes a range of a sequence, and the target tokens of that.
struct GangMember {
  int64_t worker = 0;
  int64_t length = 0;
};

/// server 0 -> worker. Tells also that the worker has no further unit of any step before `step`.
struct Lease {
  static constexpr MessageKind kKind = MessageKind::lease;
  LeaseKind kind = LeaseKind::none;
  int64_t unit = 0;        ///< number of the unit in the run
  int64_t generation = 0;  ///< raised each time a unit is leased again; pushes of an older one are refused
  int64_t step = 0;
  int64_t order = 0;  ///< place of the unit in its step, the order of adding when deterministic
  std::vector<Sequence> sequences = {};
  /// Those that compute one sequence together, in the order of their ranges; `sequences` is this worker's range then.
  /// A worker begins the gangs that it is in in the order of its leases, which is the same for all members: so nobody
  /// waits for one who waits for him.
  std::vector<GangMember> gang = {};
  int64_t barriers_before = 0;                      ///< of the steps before this one the barrier blocks are now known
  std::vector<BarrierChange> barrier_changes = {};  ///< those that the worker was not told yet
  template <class F>
  void fields(F& f) {
    f(kind), f(unit), f(generation), f(step), f(order), f(sequences), f(gang), f(barriers_before), f(barrier_changes);
  }
};

enum class Codec : int32_t { fp32 };

/// worker -> server, followed by `count` values on MailTag::push_body: a sum over target tokens of the gradient of
/// elements [begin, begin + count) of a block.
struct PushHeader {
  static constexpr MessageKind kKind = MessageKind::push;
  int64_t worker = 0;
  int64_t sequence_number = 0;  ///< of this worker's pushes to this server: a repeat is received and dropped
  int64_t generation = 0;
  int64_t step = 0;
  int64_t block = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t tokens = 0;        ///< target tokens in the sum
  bool complete = false;     ///< the sum of the whole step (of a barrier block), whatever `tokens` says
  int64_t base_version = 0;  ///< oldest version that went into the sum
  int64_t order = 0;         ///< when deterministic: place in the order of adding
  double norm = -1.0;  ///< unbounded mode with clipping over blocks: norm of the worker's whole gradient per token
  Codec codec = Codec::fp32;
  std::vector<int64_t> units;
  double age_s = 0;  ///< unbounded mode: seconds since its parameters were asked for
  template <class F>
  void fields(F& f) {
    f(worker), f(sequence_number), f(generation), f(step), f(block), f(begin), f(count), f(tokens), f(complete),
        f(base_version), f(order), f(norm), f(codec), f(units), f(age_s);
  }
};

/// Where a worker's time went since its first lease request, in seconds (metrics/account.hpp has the definitions).
struct AccountReading {
  std::vector<double> seconds = {};             ///< by Activity
  double mpi_seconds = 0;                       ///< of `other`: MPI calls inside passes
  double barrier_transfer_seconds = 0;          ///< of wait_barrier: estimate of what the transfers of rings took
  double gang_transfer_seconds = 0;             ///< of wait_gang: estimate of what transfers took
  std::vector<double> block_wait_seconds = {};  ///< by block: of wait_pull and wait_barrier, at the block's first use
  template <class F>
  void fields(F& f) {
    f(seconds), f(mpi_seconds), f(barrier_transfer_seconds), f(gang_transfer_seconds), f(block_wait_seconds);
  }
};

/// worker -> server 0: a unit is computed.
struct UnitReport {
  static constexpr MessageKind kKind = MessageKind::unit_report;
  int64_t worker = 0;
  int64_t unit = 0;
  int64_t generation = 0;
  int64_t step = 0;
  double nats = 0;
  int64_t tokens = 0;
  double seconds = 0;           ///< of computing it once, waits left out
  double elapsed_s = 0;         ///< from its begin to its end, waits included but those for parameters
  int64_t recomputed = 0;       ///< times that it was computed again (staleness.over_limit = recompute)
  AccountReading account = {};  ///< until now
  template <class F>
  void fields(F& f) {
    f(worker), f(unit), f(generation), f(step), f(nats), f(tokens), f(seconds), f(elapsed_s), f(recomputed),
        account.fields(f);
  }
};

/// worker -> server 0, for a log from which gradients are computed again (log.payload metadata): on what a unit, or a
/// range of one, was computed.
struct ComputedUnit {
  static constexpr MessageKind kKind = MessageKind::computed_unit;
  int64_t worker = 0;
  int64_t unit = 0;
  int64_t generation = 0;
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t member = -1;              ///< of the gang; -1: whole sequences
  std::vector<int64_t> bounds;      ///< GangRange::bounds; empty: whole sequences
  std::vector<int64_t> versions;    ///< by block
  std::vector<Sequence> sequences;  ///< as leased
  template <class F>
  void fields(F& f) {
    f(worker), f(unit), f(generation), f(step), f(tokens), f(member), f(bounds), f(versions), f(sequences);
  }
};

/// worker -> server 0: validation loss of a leased group.
struct EvaluationReport {
  static constexpr MessageKind kKind = MessageKind::evaluation_report;
  int64_t unit = 0;
  double nats = 0;
  int64_t tokens = 0;
  template <class F>
  void fields(F& f) {
    f(unit), f(nats), f(tokens);
  }
};

/// server -> servers that need it: sum of squares of the step's mean gradient over this server's share of `block`, or
/// of all its blocks (kAllBlocks, to server 0).
struct NormShare {
  static constexpr MessageKind kKind = MessageKind::norm_share;
  static constexpr int64_t kAllBlocks = -1;
  int64_t server = 0;
  int64_t step = 0;
  int64_t block = kAllBlocks;
  double sum_of_squares = 0;
  template <class F>
  void fields(F& f) {
    f(server), f(step), f(block), f(sum_of_squares);
  }
};

/// server 0 -> all servers: norm of the step's mean gradient.
struct NormTotal {
  static constexpr MessageKind kKind = MessageKind::norm_total;
  int64_t step = 0;
  double norm = 0;
  template <class F>
  void fields(F& f) {
    f(step), f(norm);
  }
};

/// Of a server's parts of one block: `pushes` of a step were `late` versions old when applied.
struct BlockStaleness {
  int64_t block = 0;
  int64_t late = 0;
  int64_t pushes = 0;
};
/// Oldest and newest version of one block that gradients of a step were computed on.
struct BaseVersions {
  int64_t block = 0;
  int64_t oldest = 0;
  int64_t newest = 0;
};

/// server -> server 0: all its blocks have had the update of this step (unbounded: every push of the step).
struct StepComplete {
  static constexpr MessageKind kKind = MessageKind::step_complete;
  int64_t server = 0;
  int64_t step = 0;
  std::vector<BlockStaleness> block_staleness = {};
  std::vector<BaseVersions> base_versions = {};
  std::vector<int64_t> pushes_over_limit = {};  ///< of the staleness limit, by block; may end early where all are 0
  template <class F>
  void fields(F& f) {
    f(server), f(step), f(block_staleness), f(base_versions), f(pushes_over_limit);
  }
};

/// server -> server 0: its file of the checkpoint is durable.
struct CheckpointWritten {
  static constexpr MessageKind kKind = MessageKind::checkpoint_written;
  int64_t server = 0;
  int64_t step = 0;
  std::vector<int64_t> blocks;    ///< of which this server owns a part
  std::vector<int64_t> versions;  ///< of those blocks, in the file
  double longest_copy_s = 0;      ///< of one part: so long the server did nothing else
  int64_t logged_bytes = 0;       ///< in the gradient log since the start, before compression
  template <class F>
  void fields(F& f) {
    f(server), f(step), f(blocks), f(versions), f(longest_copy_s), f(logged_bytes);
  }
};

/// worker -> server 0, at the end.
struct WorkerSummary {
  static constexpr MessageKind kKind = MessageKind::worker_summary;
  int64_t worker = 0;
  AccountReading account = {};  ///< of its whole life
  int64_t tokens = 0;
  int64_t units = 0;
  int64_t pulls = 0;
  int64_t pulls_rejected = 0;
  int64_t pulled_bytes = 0;
  int64_t pushed_bytes = 0;
  int64_t exchanged_bytes = 0;  ///< sent to other workers of gangs
  int64_t resident_before = 0;  ///< bytes of its own that the process occupied before the run's memory was made
  int64_t peak_resident = 0;    ///< the most it occupied (VmHWM)
  int64_t shared_resident = 0;  ///< of that: shared with other processes, such as slots of servers on the node
  std::string sample = {};      ///< worker 0: generated text
  double emulated_s = 0;        ///< that its emulated device worked; 0: it had none
  double mean_lag_s = 0;        ///< by which parts of units ended later than on that device
  double worst_lag_s = 0;
  double wall_seconds = 0;         ///< from its first lease request to this message, by the clock
  double node_joules = -1;         ///< energy counters of its node over the run; negative: not read here
  int64_t pulls_skipped = 0;       ///< blocks that had not changed, or that another worker had fetched to the node
  int64_t skipped_bytes = 0;       ///< of those
  int64_t prefetches = 0;          ///< blocks asked for before their unit began
  int64_t wrong_prefetches = 0;    ///< of those: something else was needed then
  double device_joules = -1;       ///< energy counter of its GPU over the run; negative: not read
  double device_utilization = -1;  ///< fraction of time in which a kernel ran there; negative: not read
  int64_t device_taken = -1;       ///< bytes of its GPU, by the driver; negative: it has none, or shares it
  double unit_time_error = -1;  ///< filled in by server 0: mean relative error of predicted seconds of units; < 0: none
  template <class F>
  void fields(F& f) {
    f(worker), account.fields(f), f(tokens), f(units), f(pulls), f(pulls_rejected), f(pulled_bytes), f(pushed_bytes),
        f(exchanged_bytes), f(resident_before), f(peak_resident), f(shared_resident), f(sample), f(emulated_s),
        f(mean_lag_s), f(worst_lag_s), f(wall_seconds), f(node_joules), f(pulls_skipped), f(skipped_bytes),
        f(prefetches), f(wrong_prefetches), f(device_joules), f(device_utilization), f(device_taken),
        f(unit_time_error);
  }
};

/// server 0 -> all others and all others -> server 0, several times in every timeout_s: the sender is there, though
/// nothing needs to be said. (A unit may take longer than timeout_s; during validation workers only pull, and of gets a
/// server notices nothing.)
struct Alive {
  static constexpr MessageKind kKind = MessageKind::alive;
  bool computes = false;       ///< a worker inside a unit, a server that writes a file: the run goes on
  std::string waits_for = {};  ///< what the sender waits for, for the line about a stalled run; empty: for nothing
  double waits_s = 0;          ///< since when
  template <class F>
  void fields(F& f) {
    f(computes), f(waits_for), f(waits_s);
  }
};

/// any -> server 0: the rank has got a signal that asks for the end of the run.
struct StopRequest {
  static constexpr MessageKind kKind = MessageKind::stop_request;
  int64_t rank = 0;
  int64_t signal = 0;
  template <class F>
  void fields(F& f) {
    f(rank), f(signal);
  }
};

/// server 0 -> all, itself included: the run ends early, after `steps` steps, of which all units are leased; no later
/// one is leased, so no part has more updates than these steps give it.
struct StopAt {
  static constexpr MessageKind kKind = MessageKind::stop_at;
  int64_t steps = 0;
  bool checkpoint = false;  ///< servers write their files of one, which is not due otherwise
  template <class F>
  void fields(F& f) {
    f(steps), f(checkpoint);
  }
};

/// server 0 -> the other servers: everything is done.
struct Shutdown {
  static constexpr MessageKind kKind = MessageKind::shutdown;
  template <class F>
  void fields(F&) {}
};

/// worker -> server 0, where sensitivity is recorded: this gradient of a block is about to leave the worker, into a
/// ring or to the servers.
struct GradientSketch {
  static constexpr MessageKind kKind = MessageKind::gradient_sketch;
  int64_t worker = 0;
  int64_t step = 0;
  int64_t block = 0;
  int64_t place = 0;  ///< order of the pushes of a step: the worker, or the unit's place where units are pushed singly
  int64_t tokens = 0;
  double sum_of_squares = 0;       ///< of the sum over target tokens
  std::vector<float> sketch = {};  ///< of the same (Operations::count_sketch)
  template <class F>
  void fields(F& f) {
    f(worker), f(step), f(block), f(place), f(tokens), f(sum_of_squares), f(sketch);
  }
};

}  // namespace hat
