#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/gradient/run_plan.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// Unbounded staleness: how old the parameters of the unit under way are, and with staleness.over_limit = recompute
/// whether the unit must be computed again, at most kMostTimes times. The age of parameters counts from the moment they
/// were asked for, which is when the pull that brought them began, or before.
class StalenessGuard {
 public:
  static constexpr int kMostTimes = 3;

  StalenessGuard(const RunPlan& plan, const Window& window, Waiting& waiting);

  /// The block was asked for ahead, for a unit to come. Units come in the order in which they were asked for.
  void asked_ahead(int64_t block);
  /// The unit under way waits for the block: asked for now, if it was not ahead.
  void asked(int64_t block);
  /// The unit computes with this version of the block.
  void took(int64_t block, int64_t version);

  double age_s(int64_t block) const;
  /// The oldest version that the unit may take: 0, or the newest one seen when it had to be computed again.
  int64_t oldest_version(int64_t block) const { return blocks_[static_cast<size_t>(block)].oldest; }

  /// Looks at the newest versions of all blocks. True if over_limit is recompute and what the unit computed with is
  /// over the limit, for less than kMostTimes times; it must then be computed again, with these versions or newer ones.
  bool must_recompute();
  /// The unit is done. Returns how often it was computed again.
  int64_t finish_unit();

 private:
  struct Block {
    std::deque<double> asked_s;  // for the units to come
    double used_asked_s = 0;
    int64_t used_version = 0;
    int64_t oldest = 0;
    int64_t latest = 0;
  };
  void look();

  const RunPlan& plan_;
  const Window& window_;
  Waiting& waiting_;
  std::vector<Block> blocks_;
  std::vector<int64_t> latest_;  // by part; a rank may be lost while these are read, so they stay
  std::vector<Request> gets_;
  int64_t recomputed_ = 0;
};

}  // namespace hat
