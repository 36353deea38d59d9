#include "hat/server/time_limit.hpp"

#include <algorithm>
#include <cmath>

namespace hat {

namespace {

constexpr double kLeastMargin_s = 3;
constexpr double kMostMargin_s = 60;
constexpr double kMarginShare = 0.05;  // of the time that there was
constexpr double kSlowDisk = 100e6;    // bytes/s, before a checkpoint has been seen
constexpr double kSlower = 1.5;        // than seen: the disk is shared with others, steps are of unequal length
constexpr size_t kStepsKept = 32;

double margin_s(double left_s) {
  return std::isfinite(left_s) ? std::clamp(kMarginShare * left_s, kLeastMargin_s, kMostMargin_s) : 0.0;
}

/// Parameters and two states of the optimizer, written by all servers at once.
double guessed_checkpoint_s(const RunPlan& plan) {
  constexpr double kBytes = 3 * sizeof(float);
  return kBytes * static_cast<double>(plan.layout.size()) / plan.roles.servers() / kSlowDisk;
}

}  // namespace

TimeLimit::TimeLimit(const RunPlan& plan, double now)
    : plan_(plan),
      margin_s_(margin_s(plan.deadline.at_s - now)),
      checkpoint_s_(guessed_checkpoint_s(plan)),
      last_step_s_(now) {}

void TimeLimit::step_done(double now) {
  step_seconds_.push_back(now - last_step_s_);
  if (step_seconds_.size() > kStepsKept) step_seconds_.pop_front();
  last_step_s_ = now;
}

void TimeLimit::checkpoint_took(double seconds) {
  checkpoint_s_ = guesses_checkpoint_ ? seconds : std::max(checkpoint_s_, seconds);
  guesses_checkpoint_ = false;
}

double TimeLimit::ending_seconds(int64_t steps_under_way) const {
  const auto longest = std::ranges::max_element(step_seconds_);
  const double step_s = longest == step_seconds_.end() ? 0.0 : *longest;
  return margin_s_ + kSlower * (checkpoint_s_ + static_cast<double>(steps_under_way) * step_s);
}

}  // namespace hat
