#include "hat/ledger/split_trial.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace hat {

namespace {
constexpr double kNearBest = 0.97;  // of what could be reached at most: not worth a trial
constexpr double kForgetting = 0.5;
constexpr int64_t kMostPatience = 1024;

Splitting other_than(Splitting way) { return way == Splitting::planned ? Splitting::off : Splitting::planned; }
}  // namespace

const char* name_of(Splitting way) { return way == Splitting::planned ? "planned" : "off"; }

std::string steps_text(const SplitDecision& decision, bool some_required) {
  const bool without = decision.tried == Splitting::off;
  return fmt::format("steps {} to {} {} gangs{}", decision.first_step + 1, decision.end_step,
                     without ? "without" : "with", without && some_required ? " but those that memory requires" : "");
}

std::string text_of(const SplitDecision& decision, bool some_required) {
  const std::string steps = steps_text(decision, some_required);
  const bool without = decision.tried == Splitting::off;
  if (!without && decision.gangs == 0) return steps + " where they end a step earlier: nowhere";
  const char* taken = without ? "no gangs from now on" : "still no gangs";
  if (decision.taken == Splitting::planned) taken = without ? "gangs stay" : "gangs again from now on";
  return fmt::format("{}: utilization {:.1f} % against {:.1f} % {}: {}", steps,
                     100 * decision.utilization_of(decision.tried),
                     100 * decision.utilization_of(other_than(decision.tried)), without ? "with" : "without", taken);
}

// S + 1 longest sequences may be under way at once. Behind a barrier the next one waits until the one before has come
// back to it, in a backward pass that takes two thirds of the time.
SplitTrial::SplitTrial(int64_t workers, int64_t staleness, double before_barrier)
    : workers_(workers),
      staleness_(staleness),
      longest_share_(std::max(1 / static_cast<double>(staleness + 1), 1 - 3 * before_barrier)) {}

bool SplitTrial::may_split(int64_t step) {
  way_of_[step] = way_;
  if (first_step_ < 0) first_step_ = step;
  end_step_ = step + 1;
  return way_ == Splitting::planned;
}

void SplitTrial::turn_to(Splitting way) {
  now_ = {};
  longest_s_ = 0;
  gangs_ = 0;
  if (way == way_) return;
  way_ = way;
  first_step_ = -1;
  last_commit_s_ = -1;
}

void SplitTrial::pause() {
  if (whole_stretches_ && now_.steps >= kSteps) decide();
  last_commit_s_ = -1;
  settling_ = staleness_ + 1;
}

void SplitTrial::resume(double now_s, int64_t steps) {
  whole_stretches_ = steps <= kSteps;
  if (!whole_stretches_) return;
  settling_ = 0;
  last_commit_s_ = now_s;
}

void SplitTrial::committed(int64_t step, double work_s, double longest_s, int64_t gangs, double now_s) {
  const auto found = way_of_.find(step);
  const bool is_other = found == way_of_.end() || found->second != way_;
  if (found != way_of_.end()) {
    if (found->second == Splitting::off) ++unsplit_steps_;
    way_of_.erase(found);
  }
  // Steps that were opened before it was turned to this way, and those that overlap with them.
  if (is_other) {
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
  if (now_.steps >= kSteps && !whole_stretches_) decide();
}

std::optional<SplitDecision> SplitTrial::unfinished() const {
  if (!is_trial_ || first_step_ < 0) return std::nullopt;
  return SplitDecision{.first_step = first_step_, .end_step = end_step_, .tried = way_, .taken = way_};
}

void SplitTrial::decide() {
  const auto workers = static_cast<double>(workers_);
  const Splitting other = other_than(way_);
  Measured& own = known(way_);
  own = {.work_s = kForgetting * own.work_s + now_.work_s,
         .wall_s = kForgetting * own.wall_s + now_.wall_s,
         .steps = own.steps + now_.steps};
  if (is_trial_) {  // the better one goes on; where no plan has gangs, that is what the plans say
    is_trial_ = false;
    since_trial_ = 0;
    const bool is_same = way_ == Splitting::planned && gangs_ == 0;
    const bool is_better = own.use(workers) > known(other).use(workers);
    SplitDecision decision{.first_step = first_step_,
                           .end_step = end_step_,
                           .tried = way_,
                           .taken = is_same || is_better ? way_ : other,
                           .gangs = gangs_};
    for (const Splitting way : {way_, other}) {
      decision.utilization[static_cast<std::size_t>(way)] = known(way).use(workers);
    }
    decisions_.push_back(decision);
    turn_to(decision.taken);
    return;
  }
  const double unsplit_s = std::max(now_.work_s / workers, longest_share_ * longest_s_);
  const bool could_be_better = way_ == Splitting::off || (gangs_ > 0 && unsplit_s < kNearBest * now_.wall_s);
  const bool is_due = known(other).steps == 0 || since_trial_ >= patience_;
  if (could_be_better && is_due) {
    if (known(other).steps > 0) patience_ = std::min(kMostPatience, 2 * patience_);
    is_trial_ = true;
    turn_to(other);
    return;
  }
  turn_to(way_);
}

}  // namespace hat
