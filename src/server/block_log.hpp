#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hat/gradient/run_plan.hpp"
#include "server/step_blocks.hpp"

namespace hat {

/// What the user sees of StepBlocks: fields of the step lines of metrics.jsonl, and lines of the summary.
///
/// Fields, lists by block:
///   barrier_blocks                                           names
///   sensitivity {consecutive, pairwise, article_pushes, article_steps}   null: undefined
///   pushes, pushes_against, pushes_over_limit, recomputed
class BlockLog {
 public:
  explicit BlockLog(const RunPlan& plan) : plan_(plan) {}

  /// Counts the step, and adds its fields to `line`.
  void step(const StepBlocks& blocks, nlohmann::json& line);
  /// Nothing where nothing was recorded.
  std::vector<std::string> summary() const;

 private:
  struct Count {
    int64_t sum = 0;
    std::vector<int64_t> by_block;
    void add(const std::vector<int64_t>& counts);
  };
  std::vector<std::string> names_of(const std::vector<bool>& is_barrier) const;
  /// "12 (embedding 3, head 9)"
  std::string text_of(const Count& count) const;

  const RunPlan& plan_;
  int64_t steps_ = 0;
  Count barriers_;
  Count pushes_;
  Count against_;
  Count over_limit_;
  int64_t recomputed_ = 0;
};

}  // namespace hat
