#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "commands/run_setup.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// What one worker sees.
struct DevicesOfWorker {
  int node = 0;
  std::vector<std::string> ids = {};    ///< of its devices: equal on one node where they are the same device
  std::vector<std::string> names = {};  ///< of the same
  std::string problem = {};             ///< why there are none
};

struct AssignedDevice {
  int index = 0;         ///< in the worker's own list
  int sharers = 1;       ///< workers that have this device, itself included
  bool is_first = true;  ///< of those: what the device counts is counted by nobody else
};

/// Gives each worker, in their order, the first device it sees that the fewest workers of its node have. So worker i of
/// a node has device i where all see all of them, and its own where a launcher shows each rank its own. Every worker
/// sees one at least.
std::vector<AssignedDevice> assign_devices(const std::vector<DevicesOfWorker>& workers);

/// Decides what all workers compute on, by the deck's `device`; the choice is in plan.compute and
/// plan.device_of_worker. A run that is continued with `auto` goes on with what it began on, whose rounding it has.
/// Refuses what was asked for, or is needed for that, and cannot be had. Collective.
ExitCode choose_device(const Communicator& world, const std::vector<int>& node_of_rank, RunSetup& setup,
                       const KeyBlame& blame);

/// What one process alone computes on, by its key `device`: auto, cpu or cuda. Throws KeyError.
DeviceKind device_for_one(const std::string& wanted);

/// Bytes that this worker may allocate on its CUDA device, of what was free there.
int64_t device_share(const RunSetup& setup);

}  // namespace hat
