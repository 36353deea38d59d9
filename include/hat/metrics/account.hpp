#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "hat/comm/messages.hpp"
#include "hat/core/clock.hpp"

namespace hat {

/// What a worker is doing. Every moment from its first lease request to its goodbye belongs to exactly one, so the sums
/// equal the wall clock.
///   compute       inside the passes of a unit, of training or validation, where nothing is waited for (clearing
///                 gradient buffers is part of it); with an emulated device, all the time that it computes (not
///                 its stalls)
///   wait_pull     a version that is published is on its way
///   wait_barrier  a version is not published yet (other workers or the server's update are waited for), or a ring
///                 all-reduce is under way
///   wait_gang     the other workers of a gang: their keys and values, or gradients of the own ones, are not here
///   wait_work     no lease (also the pauses for validation, when this worker has no group of it), or its text is not
///                 read
///   push_blocked  gradient buffers are occupied by pushes that have not left
///   other         everything else: MPI calls of the computing thread inside a pass (mpi_seconds), a server in the same
///                 process, stalls of an emulated device
enum class Activity : int { compute, wait_pull, wait_barrier, wait_gang, wait_work, push_blocked, other };
inline constexpr int kActivities = 7;
inline constexpr std::array<const char*, kActivities> kActivityNames{
    "compute", "wait_pull", "wait_barrier", "wait_gang", "wait_work", "push_blocked", "other"};

/// All seconds of a reading.
double wall_seconds(const AccountReading& reading);
/// compute / wall, 0 without time.
double utilization(const AccountReading& reading);
/// (wait_pull + push_blocked + barrier_transfer_seconds + gang_transfer_seconds + mpi_seconds) / wall: what transfers
/// cost a worker, 0 without time.
double communication_share(const AccountReading& reading);
/// `later` minus `earlier`, both of one worker; an empty `earlier` is zero.
AccountReading difference(const AccountReading& later, const AccountReading& earlier);
/// Adds `reading` to `sum`.
void add(AccountReading& sum, const AccountReading& reading);

/// A worker's clock. Starts in `other`.
class Account {
 public:
  /// Told of every stretch of time when it is charged: activity, begin and end on the clock of now_s.
  using Listener = std::function<void(Activity, double, double)>;

  Account() { begin(); }

  /// Forgets what was charged and starts again, in `other`.
  void begin() {
    since_ = now_s();
    seconds_.assign(kActivities, 0.0);
    mpi_seconds_ = barrier_transfer_seconds_ = gang_transfer_seconds_ = waited_ = gathered_ = push_travel_ = 0;
    current_ = Activity::other;
  }

  /// From now on the time belongs to `activity`. Returns the activity it belonged to before.
  Activity change(Activity activity) {
    const double now = now_s();
    charge(now - since_);
    if (listener_) listener_(current_, since_, now);
    since_ = now;
    if (activity != Activity::wait_barrier) end_barrier_wait();
    return std::exchange(current_, activity);
  }
  Activity current() const { return current_; }

  /// Seconds by activity until now.
  const std::vector<double>& seconds() {
    change(current_);
    return seconds_;
  }
  /// Everything until now but the waits of single blocks, which the account does not know.
  AccountReading reading() {
    change(current_);
    end_barrier_wait();
    return {.seconds = seconds_,
            .mpi_seconds = mpi_seconds_,
            .barrier_transfer_seconds = barrier_transfer_seconds_,
            .gang_transfer_seconds = gang_transfer_seconds_,
            .block_wait_seconds = {}};
  }
  /// Seconds in which parameters were waited for, until now.
  double waited_for_parameters() const {
    const bool waits = current_ == Activity::wait_pull || current_ == Activity::wait_barrier;
    return seconds_[static_cast<size_t>(Activity::wait_pull)] + seconds_[static_cast<size_t>(Activity::wait_barrier)] +
           (waits ? now_s() - since_ : 0.0);
  }

  /// Whether a ring of this worker is in its all-gather phase. That phase begins when every worker has entered, and is
  /// half of a ring's messages: twice the time in it, at most the whole wait, is what the ring's transfers took
  /// of a wait in wait_barrier.
  void set_ring_gathering(bool gathering) {
    if (gathering == ring_gathering_) return;
    change(current_);
    ring_gathering_ = gathering;
  }

  /// What is waited for at a barrier is there; the last push for it was so long on its way.
  void set_push_travel(double seconds) { push_travel_ = std::max(push_travel_, seconds); }

  /// Of a wait in wait_gang that has just ended, so much was the transfer of what came.
  void add_gang_transfer(double seconds) { gang_transfer_seconds_ += seconds; }

  void set_listener(Listener listener) { listener_ = std::move(listener); }

 private:
  friend class ActivityScope;
  friend class MpiScope;
  void charge(double seconds) {
    seconds_[static_cast<size_t>(current_)] += seconds;
    if (in_mpi_) mpi_seconds_ += seconds;
    if (current_ != Activity::wait_barrier) return;
    waited_ += seconds;
    if (ring_gathering_) gathered_ += seconds;
  }
  void end_barrier_wait() {
    barrier_transfer_seconds_ += std::min(2 * gathered_ + push_travel_, waited_);
    gathered_ = waited_ = push_travel_ = 0;
  }

  Activity current_ = Activity::other;
  double since_ = 0;
  std::vector<double> seconds_;
  bool in_mpi_ = false;
  double mpi_seconds_ = 0;
  double barrier_transfer_seconds_ = 0;
  double gang_transfer_seconds_ = 0;
  bool ring_gathering_ = false;
  double waited_ = 0;    // of the present wait in wait_barrier
  double gathered_ = 0;  // of that, while a ring gathered
  double push_travel_ = 0;
  Listener listener_;
};

/// Charges a scope to an activity, then goes back to the one before. Inside a MpiScope it is none of its time.
class ActivityScope {
 public:
  ActivityScope(Account& account, Activity activity)
      : account_(account), before_(account.change(activity)), in_mpi_before_(std::exchange(account.in_mpi_, false)) {}
  ~ActivityScope() {
    account_.change(before_);
    account_.in_mpi_ = in_mpi_before_;
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Account& account_;
  Activity before_;
  bool in_mpi_before_;
};

/// MPI calls of the computing thread. Inside a pass they are charged to `other` and counted as mpi_seconds; elsewhere
/// (while something is waited for) the time stays where it belongs. Nothing may wait in this scope.
class MpiScope {
 public:
  explicit MpiScope(Account& account) : account_(account), in_pass_(account.current() == Activity::compute) {
    if (!in_pass_) return;
    account_.change(Activity::other);
    account_.in_mpi_ = true;
  }
  ~MpiScope() {
    if (!in_pass_) return;
    account_.change(Activity::compute);
    account_.in_mpi_ = false;
  }
  MpiScope(const MpiScope&) = delete;
  MpiScope& operator=(const MpiScope&) = delete;

 private:
  Account& account_;
  bool in_pass_;
};

}  // namespace hat
