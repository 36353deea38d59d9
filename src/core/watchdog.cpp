#include "hat/core/watchdog.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "hat/core/error.hpp"

namespace hat {

namespace {

int say_on_stderr(const std::string& line) {
  fmt::print(stderr, "hat: {}\n", line);
  return static_cast<int>(ExitCode::failure);
}

}  // namespace

Watchdog::Watchdog(std::string who) : who_(std::move(who)), last_word_(say_on_stderr), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Watchdog::set_last_word(LastWord last_word) {
  const std::lock_guard lock(mutex_);
  last_word_ = std::move(last_word);
}

void Watchdog::set_trouble(Trouble trouble) {
  const std::lock_guard lock(mutex_);
  trouble_ = std::move(trouble);
}

void Watchdog::set_before_end(std::function<void()> before_end) {
  const std::lock_guard lock(mutex_);
  before_end_ = std::move(before_end);
}

void Watchdog::enter(std::string phase, double limit_s, TroubleIsFor trouble_is_for) {
  const std::lock_guard lock(mutex_);
  heeds_trouble_ = trouble_is_for == TroubleIsFor::watchdog;
  phase_ = std::move(phase);
  limit_s_ = limit_s;
  silence_.emplace(limit_s);
}

void Watchdog::leave() {
  const std::lock_guard lock(mutex_);
  silence_.reset();
}

void Watchdog::watch() {
  constexpr std::chrono::milliseconds kLook(100);
  constexpr int kLooksToTrouble = 5;
  constexpr int kTroubles = 4;  // in a row: two seconds
  int looks = 0;
  int troubles = 0;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLook, [this] { return ending_; })) {
    if (!silence_ || !heeds_trouble_) troubles = 0;
    if (!silence_) continue;
    std::string reason;
    if (trouble_ && heeds_trouble_ && ++looks % kLooksToTrouble == 0) {
      reason = trouble_();
      troubles = reason.empty() ? 0 : troubles + 1;
    }
    const bool is_late = silence_->is_too_long();
    if (!is_late && (troubles < kTroubles || reason.empty())) continue;
    const std::string line =
        is_late ? fmt::format("{}: {} took longer than {} s; another rank has died, or never came so far", who_, phase_,
                              limit_s_)
                : fmt::format("{}: {}, while {} was in {}", who_, reason, who_, phase_);
    if (before_end_) before_end_();
    std::_Exit(last_word_(line));  // no destructors: the other thread is inside MPI
  }
}

}  // namespace hat
