#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/server/run_result.hpp"

namespace hat {

/// What `hat bench longtail` says of one training. Times count from the end of the first validation to the commit of
/// the last step, so that no validation is in them.
struct LongtailFigures {
  double seconds = 0;
  int64_t tokens = 0;
  int64_t charged_tokens = 0;         ///< tokens times length_scale
  std::optional<double> utilization;  ///< charged FLOP over those that all devices could have done; none: not emulated
  std::optional<double> ideal;        ///< the utilization that the simulation allows; none: not simulated
  double loss = 0;                    ///< training loss at the end, smoothed: nats per token
  double validation_loss = 0;         ///< at the end, nats per token
  std::optional<double> seconds_to_loss;
  std::vector<double> activity_shares;  ///< by Activity, of the workers' wall clock, validation included
  double communication_share = 0;       ///< of the same, metrics/account.hpp
  double bytes_per_token = 0;           ///< real bytes pulled and pushed per real token
  double staleness_mean = 0;            ///< of pushes, in versions
  int64_t staleness_most = 0;
  std::optional<double> joules;          ///< modelled from busy_watts and idle_watts
  std::optional<double> counted_joules;  ///< of the real nodes' counters over the whole run; none: not readable
  double lag_mean_s = 0;                 ///< by which the emulation was behind its devices
  double lag_worst_s = 0;
};

/// Sequences of the first `steps` steps, in charged FLOP: [step][sequence].
std::vector<std::vector<double>> charged_flop(const Deck& deck, DataOrder& order, int64_t steps);

/// FLOP/s of every worker as emulated (a device that stalls: its mean over time), or 1 each where nothing is.
std::vector<double> device_speeds(const Deck& deck, int workers);

/// The utilization that the simulation (policy_simulation.hpp) allows this deck on these costs; none where no
/// simulation fits: fixed shares with staleness, no bound on staleness. Jitter is only accounted for where every worker
/// has one sequence a step.
std::optional<double> ideal_utilization(const Deck& deck, const std::vector<std::vector<double>>& costs, int workers);

/// Relative depth at which block `block` of the deck's model is first used, from 0 to 1, in FLOP of the model.
double depth_of(const Deck& deck, size_t block);

/// Training loss after each step, mean per token over the last `window` steps.
std::vector<double> smoothed_loss(const RunResult& result, int64_t window);

/// Seconds from the start of training until the smoothed loss has come down to `loss`, interpolated between steps. None
/// if it never does.
std::optional<double> seconds_to_loss(const RunResult& result, int64_t window, double loss);

/// Everything but `seconds_to_loss`, which needs the other runs.
LongtailFigures figures_of(const Deck& deck, const std::vector<std::vector<double>>& costs, const RunResult& result,
                           int64_t window);

}  // namespace hat
