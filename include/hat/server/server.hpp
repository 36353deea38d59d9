#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/metrics/trace.hpp"
#include "hat/server/run_result.hpp"

namespace hat {

/// One server: owns a shard, receives pushes, publishes versions. Server 0 also keeps the ledger, answers lease
/// requests, writes the log of the run and ends it. All calls from the thread that is inside MPI. Throws Error when the
/// run cannot go on.
class Server {
 public:
  /// `checkpoint`: where training continues from, nullptr for a new run. Start values are published on return.
  /// `trace` may be null.
  Server(const RunPlan& plan, int server, const Dataset& dataset, const Communicator& world, const Window& window,
         const CheckpointReader* checkpoint, TraceRecorder* trace);
  ~Server();

  /// Does what there is to do, without waiting. False if there was nothing.
  bool progress();
  /// Everything is committed, saved and told.
  bool finished();
  /// Leaves the run as it is, because a rank was lost: waits until nothing of this object writes files any more. It
  /// must not be destroyed then, since messages may still arrive in its memory.
  void abandon() noexcept;
  /// Of server 0, when everything else of the run is written as well: its status becomes "finished".
  void mark_finished();
  /// Of server 0 once finished. Throws std::logic_error on other servers.
  RunResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
