#pragma once
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "hat/core/clock.hpp"

namespace hat {

/// What a worker is doing. Every moment belongs to exactly one, so the sums equal the wall clock.
enum class Activity : int { compute, wait_pull, wait_barrier, wait_work, push_blocked, other };
inline constexpr int kActivities = 6;
inline constexpr std::array<const char*, kActivities> kActivityNames{"compute",   "wait_pull",    "wait_barrier",
                                                                     "wait_work", "push_blocked", "other"};

/// A worker's clock. Starts in `other`.
class Account {
 public:
  Account() : since_(now_s()), seconds_(kActivities, 0.0) {}

  /// From now on the time belongs to `activity`. Returns the activity it belonged to before.
  Activity change(Activity activity) {
    const double now = now_s();
    seconds_[static_cast<size_t>(current_)] += now - since_;
    since_ = now;
    return std::exchange(current_, activity);
  }

  /// Seconds by activity until now.
  const std::vector<double>& seconds() {
    change(current_);
    return seconds_;
  }

 private:
  Activity current_ = Activity::other;
  double since_;
  std::vector<double> seconds_;
};

/// Charges a scope to an activity, then goes back to the one before.
class ActivityScope {
 public:
  ActivityScope(Account& account, Activity activity) : account_(account), before_(account.change(activity)) {}
  ~ActivityScope() { account_.change(before_); }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Account& account_;
  Activity before_;
};

}  // namespace hat
