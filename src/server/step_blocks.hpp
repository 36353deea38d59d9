#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "hat/config/deck.hpp"

namespace hat {

/// How much the gradients of a block differ (sensitivity.hpp has the formulas). NaN: undefined.
struct BlockSensitivity {
  double consecutive = std::numeric_limits<double>::quiet_NaN();
  double pairwise = std::numeric_limits<double>::quiet_NaN();
  double article_pushes = std::numeric_limits<double>::quiet_NaN();
  double article_steps = std::numeric_limits<double>::quiet_NaN();
};

/// The measure that the deck's barriers go by.
inline double chosen_measure(const SensitivityConfig& config, const BlockSensitivity& block) {
  switch (config.measure) {
    case SensitivityMeasure::consecutive:
      return block.consecutive;
    case SensitivityMeasure::pairwise:
      return block.pairwise;
    case SensitivityMeasure::article:
      break;
  }
  return config.over == SensitivityOver::pushes ? block.article_pushes : block.article_steps;
}

/// What server 0 knows of the blocks of a committed step. Vectors go by block; one that is empty was not recorded.
struct StepBlocks {
  std::vector<bool> is_barrier;
  std::vector<BlockSensitivity> sensitivity;
  std::vector<int64_t> pushes;             ///< gradients that left workers, into rings too
  std::vector<int64_t> pushes_against;     ///< of those: against the sum of the step's others (negative inner product)
  std::vector<int64_t> pushes_over_limit;  ///< of the staleness limit (unbounded)
  int64_t recomputed = 0;                  ///< times that units were computed again (staleness.over_limit)
};

}  // namespace hat
