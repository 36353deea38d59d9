#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"

namespace hat {

/// Nothing was heard of some ranks for longer than timeout_s.
class SilentRanks : public Error {
 public:
  SilentRanks(std::set<int> ranks, const std::string& line) : Error(line), ranks_(std::move(ranks)) {}
  const std::set<int>& ranks() const { return ranks_; }

 private:
  std::set<int> ranks_;
};

/// How long nothing was heard, counted only while somebody listened: a process that did not look for a while (it was
/// stopped, or computed) could not have heard anything, and must not blame others for that time.
class Silence {
 public:
  explicit Silence(double timeout_s) : timeout_s_(timeout_s), longest_look_s_(timeout_s / 8) {}

  /// There was a word, or waiting begins.
  void end() {
    silent_s_ = 0;
    looked_s_ = now_s();
  }

  /// A look in which nothing was heard, one of many: whether the silence is longer than the time-out.
  bool is_too_long() { return is_too_long(now_s()); }
  /// The same at a given time of the clock.
  bool is_too_long(double now) {
    silent_s_ += std::min(now - looked_s_, longest_look_s_);
    looked_s_ = now;
    return silent_s_ > timeout_s_;
  }

 private:
  double timeout_s_;
  double longest_look_s_;  // of what lies between two looks no more counts
  double silent_s_ = 0;
  double looked_s_ = now_s();
};

}  // namespace hat
