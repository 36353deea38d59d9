#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace hat {

/// What ways of handing out work give at best: greedy schedules in which nothing but computing takes time and a unit is
/// one whole sequence (the model behind the tables of shared/facts.md, shared/sim/policy_sim.py and
/// barrier_depth_sim.py). All times are in the unit of the costs.

/// [t][i]: cost of sequence i of step t: its seconds on a device of speed 1.
using StepCosts = std::vector<std::vector<double>>;

double total_cost(const StepCosts& steps);

// `speeds`: one per worker; a sequence takes cost / speed.

/// Seconds of all steps when sequence i is worker i's (mod workers) and every step waits for the slowest worker.
double static_sync_seconds(const StepCosts& steps, const std::vector<double>& speeds);

/// Seconds of all steps when the costs of each are balanced without regard to speeds (longest first to the least loaded
/// worker) and it waits for the slowest one.
double balanced_sync_seconds(const StepCosts& steps, const std::vector<double>& speeds);

/// Seconds of all steps when the worker that is free first takes the longest sequence left. Those of step t start once
/// all of step t - 1 - `staleness` are done.
///
/// `barrier_depth`, from 0 (first block) to 1 (behind the last): one block has staleness 0. The forward pass, a third
/// of a sequence's time, stops there until the backward pass, the other two thirds, of every sequence of the step
/// before has come down to it.
double on_demand_seconds(const StepCosts& steps, const std::vector<double>& speeds, int64_t staleness,
                         std::optional<double> barrier_depth = std::nullopt);

/// Mean of the largest of `workers` log-normal factors of mean 1 and standard deviation `jitter`: how much longer than
/// an undisturbed one a synchronous step of equal units takes. Estimated from 20,000 drawn steps.
double mean_slowest_factor(int workers, double jitter);

}  // namespace hat
