#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/gradient/barrier_schedule.hpp"
#include "hat/gradient/run_plan.hpp"
#include "server/step_blocks.hpp"

namespace hat {

/// Measures of one block in one step. Push i has the sum G_i over n_i > 0 target tokens, g_i = G_i / n_i; norms |g_i|
/// are exact, those of differences come from sketches (2.2 % standard error).
///   article_pushes  mean over i of |g_i - g_(i-1)|
///   article_steps   |g - g of the step before|, g = sum G_i / sum n_i
///   consecutive     article_pushes / mean of |g_i|
///   pairwise        root of the mean of |g_i - g_j|^2 over the mean of |g_i|^2, pairs weighted by n_i n_j, pushes by
///                   n_i. (The first mean is 2 N D / (N^2 - sum n_i^2), N = sum n_i, with the weighted squared
///                   deviation D = sum |G_i|^2 / n_i - |sum G_i|^2 / N.)
/// The last two are 0 where all pushes agree and about 1.4 where they have nothing in common. All but article_steps
/// are undefined for fewer than two pushes, and article_steps without a step before.
/// `pushes` in their order, sketches of kSketchBuckets values; `step_before`: sketch of g, or empty.
BlockSensitivity measure_sensitivity(std::span<const GradientSketch> pushes, std::span<const float> step_before);

/// Sketch of g, the step's gradient per token.
std::vector<float> mean_sketch(std::span<const GradientSketch> pushes);

/// Pushes whose inner product with the sum of the others is negative.
int64_t pushes_against_others(std::span<const GradientSketch> pushes);

/// Server 0's side of barriers by sensitivity: collects the workers' sketches, measures, chooses the barrier blocks,
/// and tells the workers with their leases. No communication.
///
/// A block that is none becomes a barrier block in step s when the mean of the measure over the `window` steps up to
/// s - lookahead is above the threshold, and is released when it is below threshold (1 - hysteresis); steps where the
/// measure is undefined are left out. No step beyond the last committed one + lookahead is leased, so these steps are
/// committed whenever the set of s is asked for: the choice does not depend on timing. After a resume it begins with
/// the blocks of the plan again.
class Sensitivity {
 public:
  /// `lookahead`: LedgerOptions::lookahead.
  Sensitivity(const RunPlan& plan, int64_t lookahead);

  /// True when with this one all gradients of the step are in. `step_tokens`: target tokens of the step. Throws Error
  /// on a sketch that cannot be.
  bool add(GradientSketch sketch, int64_t step_tokens);
  /// The step is committed. Steps come in order.
  void close(int64_t step, StepBlocks& result);
  /// Completes a lease with the barrier blocks that the worker must know: of every step that it may now enter the rings
  /// of.
  void tell(int64_t worker, Lease& lease);

 private:
  struct OpenStep {
    std::vector<std::vector<GradientSketch>> pushes;  // by block
    std::vector<int64_t> tokens;                      // by block
    int64_t blocks_complete = 0;
  };
  void choose(int64_t step);
  /// NaN where the measure is undefined in all of the window.
  double window_mean(size_t block) const;

  const RunPlan& plan_;
  int64_t lookahead_;
  BarrierSchedule schedule_;
  std::map<int64_t, OpenStep> open_;
  std::deque<std::vector<BlockSensitivity>> window_;           // of the last steps that a choice used
  std::map<int64_t, std::vector<BlockSensitivity>> measured_;  // by step, not used yet
  std::vector<std::vector<float>> step_before_;                // by block: sketch
  std::vector<bool> chosen_;                                   // by block, in step chosen_before_ - 1
  int64_t chosen_before_;                                      // the sets of the steps below are fixed
  std::multimap<int64_t, BarrierChange> changes_;              // by step
  std::map<int64_t, int64_t> told_before_;                     // by worker
};

}  // namespace hat
