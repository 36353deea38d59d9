#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hat {

/// Whether the sequences of a step may be split: as GangPlanner plans, or only where no worker has the memory.
enum class Splitting : std::size_t { planned, off };
const char* name_of(Splitting way);

/// Some steps went the other way, and what came of it.
struct SplitDecision {
  int64_t first_step = 0;  ///< that was opened that way
  int64_t end_step = 0;    ///< one behind the last so far
  Splitting tried = Splitting::off;
  Splitting taken = Splitting::planned;  ///< from now on
  std::array<double, 2> utilization{};   ///< [Splitting]: predicted seconds of work over the workers' time
  int64_t gangs = 0;                     ///< that the plans of the measured steps had, where those were tried
  double utilization_of(Splitting way) const { return utilization[static_cast<std::size_t>(way)]; }
};
/// "steps 18 to 27 without gangs: utilization 61.0 % against 66.0 % with: gangs stay". Steps count from 1.
/// `some_required`: there are sequences that no worker has the memory for.
std::string text_of(const SplitDecision& decision, bool some_required);
/// "steps 18 to 27 without gangs": its beginning.
std::string steps_text(const SplitDecision& decision, bool some_required);

/// Whether computing sequences by several workers really pays, as measured (split.policy = auto). GangPlanner decides
/// by predicted time and knows the messages of gangs, but not what else of a run's transfers comes to stand between
/// workers that begin together: on slow networks its plans can end later than a step without gangs would.
///
/// Steps are split until so many are committed that the use of the workers' time is known. Where the plans have no
/// gangs, or no schedule without could be better (its longest sequences hold it up), that is all. Otherwise some steps
/// go without; the better of the two goes on, and the other is tried again, ever more seldom.
///
/// Steps in which workers fill up after a pause, or which overlap with some of the other way, are left out; unless
/// pauses are so frequent that nothing would be left: then whole stretches between pauses are compared.
class SplitTrial {
 public:
  /// `before_barrier`: share of a unit's time before it needs all of the step before (LedgerOptions).
  SplitTrial(int64_t workers, int64_t staleness, double before_barrier = 1);

  /// Whether sequences of this step, which is opened now, may be split. Steps are opened in ascending order. A step
  /// that this is not asked for (planned before any times were known) is not measured, and disturbs those beside it.
  bool may_split(int64_t step);

  /// A step is committed, in ascending order. `work_s`: predicted seconds of all its sequences on one mean worker,
  /// `longest_s`: of the longest; `gangs` that it had because its plan ended earlier with them.
  void committed(int64_t step, double work_s, double longest_s, int64_t gangs, double now_s);
  /// Everything in flight is finished now, for validation.
  void pause();
  /// Training goes on, until the next pause for so many steps.
  void resume(double now_s, int64_t steps);

  /// Since the last call.
  std::vector<SplitDecision> take_decisions() { return std::exchange(decisions_, {}); }
  /// The trial that is under way: its steps so far.
  std::optional<SplitDecision> unfinished() const;
  /// Steps whose sequences were not split, to try that or because it had turned out better.
  int64_t unsplit_steps() const { return unsplit_steps_; }

 private:
  struct Measured {
    double work_s = 0;
    double wall_s = 0;
    int64_t steps = 0;
    double use(double workers) const { return wall_s > 0 ? work_s / (workers * wall_s) : 0; }
  };
  Measured& known(Splitting way) { return known_[static_cast<std::size_t>(way)]; }
  void decide();
  void turn_to(Splitting way);

  int64_t workers_;
  int64_t staleness_;
  double longest_share_;  // of its longest sequence's time, if that is not split, a step takes at least
  Splitting way_ = Splitting::planned;
  std::map<int64_t, Splitting> way_of_;  // of open steps
  int64_t first_step_ = -1;              // that was opened in this way since it was turned to
  int64_t end_step_ = 0;                 // one behind the last that was opened
  bool whole_stretches_ = false;         // are measured, from pause to pause
  int64_t settling_ = 0;                 // commits that belong to what was before
  double last_commit_s_ = -1;            // negative: none to count from
  Measured now_;                         // of the way in use, since its last judgement
  std::array<Measured, 2> known_;        // of each way, newest judgements count most
  double longest_s_ = 0;                 // sum over the steps of `now_`
  int64_t gangs_ = 0;                    // of the steps of `now_`
  int64_t patience_ = kFirstPatience;
  int64_t since_trial_ = 0;  // steps measured since the other way was tried
  bool is_trial_ = false;    // the way in use is tried, to be compared with the other
  int64_t unsplit_steps_ = 0;
  std::vector<SplitDecision> decisions_;

  static constexpr int64_t kSteps = 8;  // of one judgement: steps differ
  static constexpr int64_t kFirstPatience = 32;
};

}  // namespace hat
