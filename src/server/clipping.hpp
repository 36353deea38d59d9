#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// One server's view of gradient norms: what it knows, whom it tells, and the factor each update is clipped by
/// (bounded modes; with one update per push the worker sends the norm along).
///   none      1
///   global    norm of the step's whole mean gradient, which is in only after the last block of the step
///   previous  the whole norm of step t - 1 - S (S of step t), the newest one that is sure to be complete when a
///             block of step t is; where that is not known (the first steps of a run) the step's own
///   block     norm of the block alone
/// Norms of blocks that lie on several servers are put together from shares.
class Clipping {
 public:
  /// `recent_norms`: whole norms of the steps just before plan.first_step, oldest first (from the checkpoint).
  /// `post(share, server)` sends a share to another server, or to this one.
  Clipping(const RunPlan& plan, int server, const std::vector<double>& recent_norms,
           std::function<void(const NormShare&, int)> post);

  /// `sum_of_squares` of the step's mean gradient over one of this server's parts.
  void part_complete(int64_t part, int64_t step, double sum_of_squares);
  void receive(const NormShare& share);
  void receive(const NormTotal& total) { totals_[total.step] = total.norm; }

  /// Factor for the update of this block by this step; empty while a norm is missing.
  std::optional<double> factor(int64_t block, int64_t step) const;
  /// Norms that nobody will ask for again.
  void forget_before(int64_t step);

 private:
  double limit(double norm) const;
  std::optional<double> block_norm(int64_t block, int64_t step) const;

  const RunPlan& plan_;
  int server_;
  int64_t oldest_norm_;  // steps below have no norm
  std::function<void(const NormShare&, int)> post_;
  std::map<int64_t, std::map<int64_t, double>> own_;                         // step -> by part of this server
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, double>> shares_;  // (step, block) -> by server
  std::map<int64_t, double> totals_;                                         // by step
};

}  // namespace hat
