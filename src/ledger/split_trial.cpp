#include "hat/ledger/split_trial.hpp"

#include <algorithm>

namespace hat {

namespace {
constexpr double kNearBest = 0.97;  // of what could be reached at most: not worth a trial
constexpr double kForgetting = 0.5;
constexpr int64_t kMostPatience = 1024;
}  // namespace

// S + 1 longest sequences may be under way at once. Behind a barrier the next one waits until the one before has come
// back to it, in a backward pass that takes two thirds of the time.
SplitTrial::SplitTrial(int64_t workers, int64_t staleness, double before_barrier)
    : workers_(workers),
      staleness_(staleness),
      longest_share_(std::max(1 / static_cast<double>(staleness + 1), 1 - 3 * before_barrier)) {}

bool SplitTrial::may_split(int64_t step) {
  arm_of_[step] = arm_;
  return arm_ == Arm::split;
}

void SplitTrial::turn_to(Arm arm) {
  now_ = {};
  longest_s_ = 0;
  gangs_ = 0;
  if (arm == arm_) return;
  arm_ = arm;
  last_commit_s_ = -1;
}

void SplitTrial::pause() {
  last_commit_s_ = -1;
  settling_ = staleness_ + 1;
}

void SplitTrial::committed(int64_t step, double work_s, double longest_s, int64_t gangs, double now_s) {
  const auto found = arm_of_.find(step);
  const Arm of_step = found == arm_of_.end() ? arm_ : found->second;
  if (found != arm_of_.end()) arm_of_.erase(found);
  if (of_step == Arm::unsplit) ++unsplit_steps_;
  // Steps that were opened before the arms changed, and those that overlap with them.
  if (of_step != arm_) {
    settling_ = staleness_ + 1;
    return;
  }
  if (settling_ > 0) {
    --settling_;
    last_commit_s_ = now_s;
    return;
  }
  if (last_commit_s_ >= 0) {
    now_.work_s += work_s;
    now_.wall_s += now_s - last_commit_s_;
    ++now_.steps;
    longest_s_ += longest_s;
    gangs_ += gangs;
    ++since_trial_;
  }
  last_commit_s_ = now_s;
  if (now_.steps >= kSteps) decide();
}

void SplitTrial::decide() {
  const auto workers = static_cast<double>(workers_);
  Measured& known = known_[arm_];
  known = {.work_s = kForgetting * known.work_s + now_.work_s,
           .wall_s = kForgetting * known.wall_s + now_.wall_s,
           .steps = known.steps + now_.steps};
  const Arm other = arm_ == Arm::split ? Arm::unsplit : Arm::split;
  if (is_trial_) {  // the better one goes on
    is_trial_ = false;
    since_trial_ = 0;
    turn_to(known.use(workers) > known_[other].use(workers) ? arm_ : other);
    return;
  }
  const double unsplit_s = std::max(now_.work_s / workers, longest_share_ * longest_s_);
  const bool could_be_better = arm_ == Arm::unsplit || (gangs_ > 0 && unsplit_s < kNearBest * now_.wall_s);
  const bool is_due = known_[other].steps == 0 || since_trial_ >= patience_;
  if (could_be_better && is_due) {
    if (known_[other].steps > 0) patience_ = std::min(kMostPatience, 2 * patience_);
    is_trial_ = true;
    turn_to(other);
    return;
  }
  turn_to(arm_);
}

}  // namespace hat
