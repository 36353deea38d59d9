#pragma once
#include <cstdint>
#include <deque>
#include <future>

#include "hat/comm/mailbox.hpp"
#include "hat/core/background_thread.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/gradient/barrier_schedule.hpp"
#include "hat/gradient/run_plan.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// A lease and its text, which a thread reads.
struct LeasedWork {
  Lease lease;
  std::future<PackedBatch> batch;  ///< of leases that have sequences
};

/// A worker's side of leasing: asks server 0, and has a thread read the text of a lease as soon as it is known, so that
/// the next unit's text is there when the present one is computed.
class LeaseDesk {
 public:
  /// `barriers` learns from every lease that comes.
  LeaseDesk(const RunPlan& plan, int worker, const Dataset& dataset, Mailbox& mailbox, Waiting& waiting,
            BarrierSchedule& barriers);

  /// Asks for one more lease. `idle`: nothing is left to compute, the answer may take until there is something.
  void ask(bool idle, int64_t closed_step);
  /// Questions that `take` has not answered yet.
  int64_t asked() const { return asked_; }
  /// `take` would not wait.
  bool has_answer() const { return !answers_.empty(); }
  /// The answer to the oldest question; waits for it.
  LeasedWork take();
  /// Waits until the text is read. Throws what reading ended with.
  PackedBatch text_of(LeasedWork& work);

  /// Server 0 has said that the run ends early.
  bool run_stops() const { return run_stops_; }

  /// Receives answers that have come.
  void progress();

 private:
  const RunPlan& plan_;
  int worker_;
  const Dataset& dataset_;
  Mailbox& mailbox_;
  Waiting& waiting_;
  BarrierSchedule& barriers_;
  int64_t asked_ = 0;
  bool run_stops_ = false;
  std::deque<LeasedWork> answers_;
  BackgroundThread thread_;
};

}  // namespace hat
