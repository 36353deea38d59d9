#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/ledger/split_trial.hpp"

namespace hat {

/// first_step, last_step (steps done with the first and the last of them), tried and taken from now on ("planned",
/// "off"), utilization_planned, utilization_off, gangs.
nlohmann::ordered_json json_of(const SplitDecision& decision);

/// What a finished training was, for programs that run several and compare them. Seconds count from the start of the
/// run's log, when all ranks are ready to train.
struct RunResult {
  struct StepPoint {
    int64_t step = 0;  ///< steps done
    double nats = 0;   ///< training loss summed over the step's target tokens
    int64_t tokens = 0;
    double seconds = 0;  ///< when the step was committed
  };
  struct EvaluationPoint {
    int64_t step = 0;
    double loss = 0;           ///< validation, nats per target token
    double bits_per_byte = 0;  ///< of validation
    double seconds = 0;
  };
  std::vector<StepPoint> steps;
  std::vector<EvaluationPoint> evaluations;
  std::vector<int64_t> staleness_counts;  ///< [s]: pushes that were s versions old when applied
  std::vector<WorkerSummary> workers;     ///< by worker
  int64_t gangs = 0;                      ///< sequences that several workers computed at once
  int64_t gang_members = 0;               ///< ranges of those
  int64_t unsplit_steps = 0;              ///< SplitTrial
  std::vector<SplitDecision> split_decisions;
  int64_t tokens = 0;  ///< target tokens trained
  double seconds = 0;  ///< until all workers had said goodbye
};

}  // namespace hat
