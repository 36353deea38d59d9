#pragma once
#include <atomic>
#include <cstdint>

namespace hat {

/// Where a rank can be made to die, to freeze or to be slow, so that tests and operators can see what becomes of a run.
enum class FaultPoint {
  none,
  start,       ///< before the run folder is made
  pull,        ///< a worker asks for parameters
  compute,     ///< between the forward and the backward pass of a unit
  push,        ///< a gradient leaves a worker
  barrier,     ///< a worker enters a ring, or pushes a barrier block
  update,      ///< the optimizer works on a part
  publish,     ///< a version is computed, and not visible yet
  log,         ///< values stand in the log, and their row does not
  checkpoint,  ///< a server's file is about to be written
  complete,    ///< a checkpoint is about to be put together
  replay,      ///< an update of the gradient log is about to be made again
  regroup,     ///< survivors look for each other, then make a communicator: passed twice
  shutdown,    ///< a rank has done its part and waits for the others
};

enum class FaultAction {
  kill,      ///< SIGKILL to itself
  stop,      ///< SIGSTOP to itself
  kill_job,  ///< SIGKILL to the launcher above it, and to itself
  delay,     ///< it sleeps, each time
};

/// Keys fault.*: nothing happens by default.
struct FaultConfig {
  FaultPoint at = FaultPoint::none;
  FaultAction action = FaultAction::kill;
  int64_t rank = 0;   ///< as the launcher counts
  int64_t after = 0;  ///< times that the point is passed before
  double delay_s = 0.1;
};

/// From now on, once for the process: what shall happen to it.
void set_fault(const FaultConfig& config, int rank);

namespace fault_detail {
extern std::atomic<FaultPoint> armed;
void reach();
}  // namespace fault_detail

/// This rank, on whatever thread, is at this point.
inline void fault_point(FaultPoint point) {
  if (fault_detail::armed.load(std::memory_order_relaxed) == point) fault_detail::reach();
}

}  // namespace hat
