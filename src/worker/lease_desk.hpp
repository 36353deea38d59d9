#pragma once
#include <cstdint>
#include <future>
#include <optional>

#include "hat/comm/mailbox.hpp"
#include "hat/core/background_thread.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/gradient/barrier_schedule.hpp"
#include "hat/gradient/run_plan.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// A worker's side of leasing: asks server 0, and has a thread read the text of a lease as soon as it is known, so that
/// the next unit's text is there when the present one is computed.
class LeaseDesk {
 public:
  /// `barriers` learns from every lease that comes.
  LeaseDesk(const RunPlan& plan, int worker, const Dataset& dataset, Mailbox& mailbox, Waiting& waiting,
            BarrierSchedule& barriers);

  /// Asks for the next lease. `idle`: nothing is left to compute, the answer may take until there is something.
  void ask(bool idle, int64_t closed_step);
  /// The answer to `ask`; waits for it.
  Lease take_lease();
  /// The text of the lease taken last; waits until it is read. Throws what reading ended with.
  PackedBatch take_batch();

  /// Receives an answer that has come.
  void progress();

 private:
  const RunPlan& plan_;
  int worker_;
  const Dataset& dataset_;
  Mailbox& mailbox_;
  Waiting& waiting_;
  BarrierSchedule& barriers_;
  std::optional<Lease> answer_;
  std::future<PackedBatch> batch_;       // of the lease taken last
  std::future<PackedBatch> next_batch_;  // of `answer_`
  BackgroundThread thread_;
};

}  // namespace hat
