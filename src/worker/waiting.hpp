#pragma once
#include <functional>
#include <string>
#include <utility>

#include "hat/comm/backoff.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/silence.hpp"
#include "hat/metrics/account.hpp"

namespace hat {

/// How a worker waits: everything under way goes on meanwhile, the core is left to others, the time is charged to what
/// is waited for. Server 0 watches over all: while it speaks there is somebody who computes, however long that takes.
/// Without a word of it nothing is waited for longer than the deck's timeout_s.
class Waiting {
 public:
  /// `progress` advances everything under way without blocking.
  Waiting(std::string who, double timeout_s, Account& account, std::function<void()> progress)
      : who_(std::move(who)),
        timeout_s_(timeout_s),
        silence_(timeout_s),
        account_(account),
        progress_(std::move(progress)) {}

  /// Returns once `ready()`. Throws Error naming this rank and `what` when that takes too long.
  template <class Ready>
  void until(Activity activity, const std::string& what, Ready ready) {
    const ActivityScope scope(account_, activity);  // in shared memory a first look may be the whole transfer
    if (ready()) return;
    silence_.end();
    waits_for_ = &what;
    wait_begin_s_ = now_s();
    const AtEnd no_longer{waits_for_};
    Backoff backoff;
    while (true) {
      progress_();
      if (ready()) return;
      if (silence_.is_too_long()) {
        throw Error(fmt::format("{} waited {} s (timeout_s) for {}, and server 0 said nothing in that time", who_,
                                timeout_s_, what));
      }
      backoff.pause();
      last_wait_end_s_ = now_s();
    }
  }

  /// What the wait that is under way is for; empty: none is.
  std::string waits_for() const { return waits_for_ == nullptr ? "" : *waits_for_; }
  double waits_s() const { return waits_for_ == nullptr ? 0.0 : now_s() - wait_begin_s_; }

  /// A word of server 0 has come.
  void heard() { silence_.end(); }

  /// To be called by `ready` when a version is there: how long the last push that went into it was on its way.
  void push_travelled(double seconds) { account_.set_push_travel(seconds); }

  /// When what was waited for last was there; 0 before the first wait. (Emulated devices: they could not go on before.)
  double last_wait_end_s() const { return last_wait_end_s_; }

  void progress() {
    const MpiScope scope(account_);
    progress_();
  }
  /// While it lasts the time is nobody's work: an emulated device stands still.
  ActivityScope no_work() { return {account_, Activity::other}; }
  /// The same as progress while an emulated device computes: that goes on meanwhile, so the time stays with it.
  void progress_beside_device() { progress_(); }

 private:
  struct AtEnd {
    const std::string*& waits_for;
    ~AtEnd() { waits_for = nullptr; }
  };
  std::string who_;
  double timeout_s_;
  Silence silence_;  // of server 0, in this wait
  Account& account_;
  std::function<void()> progress_;
  double last_wait_end_s_ = 0;
  const std::string* waits_for_ = nullptr;  // in `until`
  double wait_begin_s_ = 0;
};

}  // namespace hat
