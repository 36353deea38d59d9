#pragma once
#include <functional>
#include <string>
#include <utility>

#include "hat/comm/backoff.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/metrics/account.hpp"

namespace hat {

/// How a worker waits: everything under way goes on meanwhile, the core is left to others, the time is charged to what
/// is waited for, and nothing is waited for longer than the deck's timeout_s.
class Waiting {
 public:
  /// `progress` advances everything under way without blocking.
  Waiting(std::string who, double timeout_s, Account& account, std::function<void()> progress)
      : who_(std::move(who)), timeout_s_(timeout_s), account_(account), progress_(std::move(progress)) {}

  /// Returns once `ready()`. Throws Error naming this rank and `what` when that takes too long.
  template <class Ready>
  void until(Activity activity, const std::string& what, Ready ready) {
    const ActivityScope scope(account_, activity);  // in shared memory a first look may be the whole transfer
    if (ready()) return;
    const double start_s = now_s();
    Backoff backoff;
    while (true) {
      progress_();
      if (ready()) return;
      if (now_s() - start_s > timeout_s_) {
        throw Error(fmt::format("{} waited {:.0f} s (timeout_s) for {}", who_, timeout_s_, what));
      }
      backoff.pause();
      last_wait_end_s_ = now_s();
    }
  }

  /// To be called by `ready` when a version is there: how long the last push that went into it was on its way.
  void push_travelled(double seconds) { account_.set_push_travel(seconds); }

  /// When what was waited for last was there; 0 before the first wait. (Emulated devices: they could not go on before.)
  double last_wait_end_s() const { return last_wait_end_s_; }

  void progress() {
    const MpiScope scope(account_);
    progress_();
  }
  /// The same while an emulated device computes: that goes on meanwhile, so the time stays with it.
  void progress_beside_device() { progress_(); }

 private:
  std::string who_;
  double timeout_s_;
  Account& account_;
  std::function<void()> progress_;
  double last_wait_end_s_ = 0;
};

}  // namespace hat
