#pragma once
#include <filesystem>

#include "hat/comm/communicator.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// Before a run is continued: brings it to its last committed step. Where the gradient log reaches beyond the newest
/// complete checkpoint, the ranks rebuild the servers' shards from both and write them as a checkpoint of that step;
/// from it the run goes on, on any number of servers and workers. A damaged newest checkpoint is set aside where an
/// older one and the log reach as far. Says on standard output what it did. Collective; `run` is the same on all ranks.
ExitCode recover_run(const Communicator& world, const std::filesystem::path& run);

}  // namespace hat
