#pragma once
#include <cstdint>
#include <vector>

#include "hat/comm/messages.hpp"

namespace hat {

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
  int64_t tokens = 0;                     ///< target tokens trained
  double seconds = 0;                     ///< until all workers had said goodbye
};

}  // namespace hat
