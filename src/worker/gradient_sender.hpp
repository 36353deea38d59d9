#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hat/comm/mailbox.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/device/nccl_communicator.hpp"
#include "hat/device/profiler.hpp"
#include "hat/gradient/barrier_schedule.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/metrics/trace.hpp"
#include "worker/block_sum.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// A worker's gradients and their way out. One buffer per block:
///   adding    backward passes add to it
///   copying   its sum is on its way from the device to the host, on a stream of its own; not on the CPU
///   ring      a ring all-reduce is under way in it (barrier blocks)
///   leaving   pushes are being sent from it
/// With NCCL the ring comes first, in the device's memory, and this worker's share of the sum is copied.
/// and back to adding in `begin`, which waits until it is free: of each block just before the backward pass comes to
/// it. On a rank that is server as well, too, a push is sent and the sum is the server's own memory: with S > 0 the
/// worker adds to the buffer again while that sum waits for the norm of its step, and with single-unit pushes several
/// of them make one sum. A sum in place would be right in one mode only, and a second way for gradients to travel.
class GradientSender {
 public:
  /// `compute`: the stream of the backward passes. `nccl`: of all workers, sums barrier blocks; null: MPI does.
  GradientSender(const RunPlan& plan, const Stream& compute, int worker, Mailbox& mailbox, const Communicator& workers,
                 NcclCommunicator* nccl, Waiting& waiting, const BarrierSchedule& barriers);
  /// Pushes and rings are recorded there from now on; null: nowhere.
  void set_trace(TraceRecorder* trace) { trace_ = trace; }

  /// Waits until the block's buffer is free, then clears it if its sum went out.
  void begin(int64_t block);
  /// In the device's memory.
  float* buffer(int64_t block) { return buffers_[static_cast<size_t>(block)].values.data(); }

  /// `version` of `block` was used for `tokens` target tokens of a unit, whose backward pass has left the block: what
  /// it adds is in the stream.
  void note_unit(int64_t block, int64_t unit, int64_t version, int64_t tokens);

  /// Where sensitivity is recorded: the sketch of the block's sum, which is about to go out. Arithmetic, no messages.
  void sketch(int64_t block, int64_t step, int64_t order);
  /// The block's sum goes out: a barrier block enters the ring of `step`, any other is pushed. `order` is the unit's
  /// place in the step (deterministic), `norm` what the server clips by (one update per push), or negative, `age_s` the
  /// age of the parameters (unbounded). Where sensitivity is recorded, the sketch made before goes to server 0.
  void send(int64_t block, int64_t step, int64_t generation, int64_t order, double norm, double age_s = 0);
  /// What was added since `begin` is thrown away: the unit is computed again. Nothing of it was sent.
  void discard();
  /// Enters the rings of a step in which this worker has no unit, with zeros.
  void enter_rings_with_zeros(int64_t step);

  void progress();
  /// Waits until no sum over workers is under way on the device.
  void wait_for_sums();
  /// Gives the device's memory back; nothing may be under way there, and nothing can be sent any more. What MPI may
  /// still read stays, in memory of the host.
  void free_device();
  /// Waits until everything has left.
  void finish();

  /// A ring is in its all-gather phase: every worker has entered it.
  bool ring_gathers() const {
    return std::any_of(rings_.begin(), rings_.end(), [](const Ring& ring) { return ring.operation.gathering(); });
  }

  int64_t pushed_bytes() const { return pushed_bytes_; }

 private:
  struct Buffer {
    DeviceBuffer<float> values;
    PinnedBuffer<float> on_host;  // what goes out; none on the CPU
    Event computed;               // nothing that was put into the stream before adds to it any more
    DeviceBuffer<float> sketch;   // where sensitivity is recorded; with it the sum of squares
    DeviceBuffer<double> squares;
    PinnedBuffer<float> sketch_on_host;
    PinnedBuffer<double> squares_on_host;
    bool sent = true;  // must be cleared before something is added
    std::vector<int64_t> units;
    int64_t tokens = 0;
    int64_t base_version = 0;
    std::string ring_name;  // for profilers
    std::string push_name;
  };
  /// What goes out once it has come from the device.
  struct Leaving {
    enum class Way { push, ring, sketch_alone };
    Event is_here;
    int64_t block;
    Way way;
    Range range;        // of a push
    PushHeader header;  // a ring needs step and generation
    std::optional<GradientSketch> sketch;
  };
  struct Ring {
    int64_t block;
    int64_t step;
    int64_t generation;
    BlockSum operation;
    TraceEvent event;
    ProfilerSpan span;
  };
  struct Sending {
    int64_t block;
    Request request;
    TraceEvent event;
    ProfilerSpan span;
  };
  bool in_ring(int64_t block) const;
  bool is_leaving(int64_t block) const;
  void record(TraceEvent& event);
  void leave(Leaving leaving);
  void start_ring(int64_t block, int64_t step, int64_t generation);
  /// The same by NCCL, once `computed` has come.
  void start_sum(int64_t block, int64_t step, int64_t generation, const Event& computed);
  void keep(BlockSum operation, int64_t block, int64_t step, int64_t generation);
  /// The sum of all workers is there: this worker's share of it goes out.
  void send_share(const Ring& ring);
  /// Sends elements [range) of the block, one push per server that owns some of them.
  void push(int64_t block, Range range, PushHeader header);
  /// Header and body of the part of the block that one server owns.
  void send_push(const PushHeader& header, int rank, int64_t part);
  Buffer& at(int64_t block) { return buffers_[static_cast<size_t>(block)]; }
  /// The sum, where MPI may take it from.
  std::span<float> outgoing(int64_t block) {
    return at(block).on_host.size() > 0 ? at(block).on_host.span() : at(block).values.span();
  }

  const RunPlan& plan_;
  Stream compute_;
  Stream push_;
  const Operations& operations_;
  int worker_;
  Mailbox& mailbox_;
  const Communicator& workers_;
  NcclCommunicator* nccl_;
  Waiting& waiting_;
  const BarrierSchedule& barriers_;
  std::vector<Buffer> buffers_;
  std::optional<GradientSketch> sketch_;  // of the block that is sent next, without its numbers
  std::deque<Leaving> copying_;
  std::deque<Ring> rings_;
  std::vector<Sending> sending_;
  std::vector<int64_t> sequence_numbers_;  // by server
  int64_t pushed_bytes_ = 0;
  TraceRecorder* trace_ = nullptr;
};

}  // namespace hat
