#pragma once
#include "commands/run_setup.hpp"

namespace hat {

/// The lines with which a run begins: ranks, mode, model, data, memory, steps, and warnings of what nobody can mean.
/// `ranks` on `nodes`.
void describe_run(const RunSetup& setup, int ranks, int nodes);

/// By how many workers a sequence may be computed together, and what their links do.
void describe_links(const RunPlan& plan);

}  // namespace hat
