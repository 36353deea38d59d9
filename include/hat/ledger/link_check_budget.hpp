#pragma once
#include <cstdint>

namespace hat {

/// How much waiting is risked on gangs that only look how fast links are (GangReason::link_check): a small share of a
/// run's time even if links are as slow as predicted, and ever more seldom as long as they turn out so.
class LinkCheckBudget {
 public:
  /// So much of the run has passed.
  void advance(double now_s);
  /// Seconds that a check of the step that is planned now may cost; 0: none is due.
  double seconds(int64_t step) const { return step < next_step_ ? 0 : left_s_; }
  /// One is planned that is predicted to cost so much.
  void plan(int64_t step, double predicted_s);
  /// It cost so much.
  void observe(double predicted_s, double waited_s);

 private:
  double last_s_ = -1;
  double left_s_ = 0;
  int64_t next_step_ = 0;  // of which a check may be
  int64_t patience_ = 1;   // steps from one to the next
};

}  // namespace hat
