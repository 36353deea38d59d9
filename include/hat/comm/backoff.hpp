#pragma once
#include <ctime>

namespace hat {

/// For loops that poll: the first rounds only yield nothing, then sleep, at most about 200 us at a time, so that an
/// idle rank leaves its core to a busy one and still answers quickly.
class Backoff {
 public:
  void reset() { round_ = 0; }
  void pause() {
    if (round_ < kSpins) {
      ++round_;
      return;
    }
    if (round_ < kSpins + kSteps) ++round_;
    const timespec sleep{.tv_sec = 0, .tv_nsec = kStepNs * (round_ - kSpins)};
    nanosleep(&sleep, nullptr);
  }

 private:
  static constexpr int kSpins = 16;
  static constexpr int kSteps = 10;
  static constexpr long kStepNs = 20'000;
  int round_ = 0;
};

}  // namespace hat
