#pragma once
#include <memory>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/metrics/trace.hpp"

namespace hat {

/// What the roles of this rank record for RUN/trace.json (key trace). Off, it does nothing and holds nothing.
class RankTrace {
 public:
  /// Collective. `server`, `worker`: numbers of this rank's roles, or -1.
  RankTrace(const RunPlan& plan, const Communicator& world, const std::vector<int>& node_of_rank, int server,
            int worker);

  /// Null where there is no such role, or no trace.
  TraceRecorder* of_server() { return server_.get(); }
  TraceRecorder* of_worker() { return worker_.get(); }

  /// Collective, when the run is over: the events of all ranks, in one file written by the rank of server 0.
  void write() const;

 private:
  const RunPlan& plan_;
  const Communicator& world_;
  int root_;
  double offset_s_ = 0;
  double start_s_ = 0;  // on this rank's clock
  std::unique_ptr<TraceRecorder> server_;
  std::unique_ptr<TraceRecorder> worker_;
};

}  // namespace hat
