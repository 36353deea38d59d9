#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hat/config/emulation.hpp"
#include "hat/core/gang_range.hpp"
#include "hat/ledger/unit_cost_model.hpp"
#include "hat/model/charged_cost.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// When a device is slow or stands still. Times in seconds since the run's start; what happens depends on nothing but
/// the deck, the seed and the worker.
///   slow phases   from a moment of its own on, every slow_every_s, for slow_for_s: everything takes slow_factor
///                 times as long
///   stalls        for stall_for_s, after gaps drawn from an exponential distribution of mean stall_every_s
class Disturbances {
 public:
  /// None at all for a worker that is not disturbed.
  Disturbances(const EmulatedDeviceConfig& config, uint64_t seed, int worker);

  /// When work that takes `work_s` undisturbed is done if it begins at `start_s`. Starts never decrease.
  double finish(double start_s, double work_s);
  /// Of all work until now, the seconds in which nothing was computed.
  double stalled_s() const { return stalled_s_; }

 private:
  struct Phase {
    double factor;  // how much longer everything takes; infinite: nothing is computed
    double end_s;
  };
  Phase phase_at(double time_s);
  Phase slow_phase_at(double time_s) const;
  void draw_stall(double after_s);

  EmulatedDeviceConfig config_;
  uint64_t seed_;
  uint64_t worker_;
  double first_slow_s_ = 0;
  double stall_begin_s_ = 0;  // the one under way, or the next
  uint64_t stalls_ = 0;
  double stalled_s_ = 0;
};

/// Makes a worker's units last as long as on a device of the deck's speed: the real arithmetic of a part of a unit is
/// followed by sleep until the emulated device has done that part, too.
///
/// The parts are the forward passes of the blocks, then their backward passes (the head's two are one part), so that
/// what leaves or is needed at a certain depth does so at the right moment. A part takes its block's FLOP (ChargedCost,
/// document by document) over the speed, a third forward and two thirds backward, times the unit's jitter. It begins
/// when the part before is done or when the worker stopped waiting for something, whichever is later: where the real
/// arithmetic was late, later parts catch up. How late it was is recorded: an emulation that lags shows nothing.
class EmulatedDevice {
 public:
  EmulatedDevice(const EmulatedDeviceConfig& config, ChargedCost cost, uint64_t seed, int worker, Waiting& waiting);

  /// A unit of documents [offsets[i], offsets[i + 1]) begins now.
  void begin_unit(int64_t unit, std::span<const int32_t> offsets);
  /// The same of a range of a document. What the unit waits for from other members is not the device's work.
  void begin_unit(int64_t unit, const GangRange& range);
  /// Sleep until the device has been through the forward pass of the blocks before `block`, or through the backward
  /// pass of `block`. Nothing in a pass that no begin_unit announced: validation runs at real speed.
  void before_forward(int64_t block);
  void after_backward(int64_t block);
  /// The device does a part of the block that it is in, so that something can leave or be waited for inside of it.
  /// `tokens` and `area` of the block's forward FLOP; twice that in its backward pass.
  void do_part(int64_t block, double tokens, double area, bool backward);
  /// What was done until now was not the device's work.
  void resume();
  /// The run shall end: from some seconds after the first call on the device is no longer slower than this machine, so
  /// that what is under way ends, however slow the deck makes it.
  void end_soon();

  struct Lag {
    double worst_s = 0;  ///< by which a part ended later than on the device
    double mean_s = 0;   ///< over all parts
  };
  /// Of all units but the first, before which nothing is in caches and no kernel is made.
  Lag lag() const;
  /// Seconds that its units have taken, stalls included.
  double seconds() const { return seconds_; }
  /// Of those, seconds in which it has computed.
  double busy_seconds() const { return seconds_ - disturbances_.stalled_s(); }
  /// In a stall. Whoever has to know that the worker is well takes that for computing.
  bool stands_still() const { return stands_still_; }

 private:
  void begin_unit(int64_t unit, const UnitSize& size);
  /// The device does `flop` more; returns when it is done.
  void work(double flop);
  void finish_block(double flop);
  void sleep_until(double time_s) const;

  ChargedCost cost_;
  double speed_;
  double jitter_;
  uint64_t seed_;
  uint64_t worker_;
  Waiting& waiting_;
  Disturbances disturbances_;
  double start_s_;           // of the run
  double clock_s_;           // when the device was through with the part before
  int64_t next_block_ = -1;  // whose forward pass is not done yet; -1: no unit under way
  UnitSize size_;            // of the unit
  double done_flop_ = 0;     // of the block that it is in
  double slowness_ = 1;      // its jitter
  int64_t units_ = 0;
  double seconds_ = 0;
  bool stands_still_ = false;
  double no_sleep_from_s_ = std::numeric_limits<double>::infinity();
  double lag_sum_s_ = 0;
  double worst_lag_s_ = 0;
  int64_t parts_ = 0;
};

}  // namespace hat
