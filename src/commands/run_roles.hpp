#pragma once
#include <vector>

#include "commands/run_setup.hpp"
#include "commands/training_run.hpp"
#include "hat/comm/communicator.hpp"

namespace hat {

/// The run itself: a window for the parameters, then each rank lives its role until all is trained, saved and told.
/// Collective. Throws RankLost when a rank is lost and ranks are watched, and then leaves all that refers to `setup` as
/// it is: it must outlive the job. After any other exception the job must be aborted without another call of MPI.
void run_roles(RunSetup& setup, const Communicator& world, const std::vector<int>& node_of_rank,
               const RunSurroundings& surroundings);

}  // namespace hat
