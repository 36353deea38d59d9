#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

namespace hat {

/// Whether computing sequences by several workers really pays, as measured (split.policy = auto). GangPlanner decides
/// by predicted time and knows the messages of gangs, but not what else of a run's transfers comes to stand between
/// workers that begin together: on slow networks its plans can end later than a step without gangs would.
///
/// Steps are split until so many are committed that the use of the workers' time is known. Where no schedule without
/// gangs could be better (its longest sequences hold it up), that is all. Otherwise some steps go without; the better
/// of the two goes on, and the other is tried again, ever more seldom.
class SplitTrial {
 public:
  /// `before_barrier`: share of a unit's time before it needs all of the step before (LedgerOptions).
  SplitTrial(int64_t workers, int64_t staleness, double before_barrier = 1);

  /// Whether sequences of this step, which is opened now, may be split. Steps are opened in ascending order.
  bool may_split(int64_t step);

  /// A step is committed, in ascending order. `work_s`: predicted seconds of all its sequences on one mean worker,
  /// `longest_s`: of the longest; `gangs` that it had.
  void committed(int64_t step, double work_s, double longest_s, int64_t gangs, double now_s);
  /// Everything in flight is finished now, for validation: what comes next starts from nothing.
  void pause();

  /// Steps whose sequences were not split, to try that or because it had turned out better.
  int64_t unsplit_steps() const { return unsplit_steps_; }

 private:
  enum Arm : std::size_t { split, unsplit };
  struct Measured {
    double work_s = 0;
    double wall_s = 0;
    int64_t steps = 0;
    double use(double workers) const { return wall_s > 0 ? work_s / (workers * wall_s) : 0; }
  };
  void decide();
  void turn_to(Arm arm);

  int64_t workers_;
  int64_t staleness_;
  double longest_share_;  // of its longest sequence's time, if that is not split, a step takes at least
  Arm arm_ = Arm::split;
  std::map<int64_t, Arm> arm_of_;  // of open steps
  int64_t settling_ = 0;           // commits that belong to what was before
  double last_commit_s_ = -1;      // negative: none to count from
  Measured now_;                   // of the arm in use, since its last judgement
  std::array<Measured, 2> known_;  // of each arm, newest judgements count most
  double longest_s_ = 0;           // sum over the steps of `now_`
  int64_t gangs_ = 0;              // of the steps of `now_`
  int64_t patience_ = kFirstPatience;
  int64_t since_trial_ = 0;  // steps measured since the other arm was tried
  bool is_trial_ = false;    // the arm in use is tried, to be compared with the other
  int64_t unsplit_steps_ = 0;

  static constexpr int64_t kSteps = 8;  // of one judgement: steps differ
  static constexpr int64_t kFirstPatience = 32;
};

}  // namespace hat
