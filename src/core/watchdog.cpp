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

void Watchdog::enter(std::string phase, double limit_s) {
  const std::lock_guard lock(mutex_);
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
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLook, [this] { return ending_; })) {
    if (!silence_ || !silence_->is_too_long()) continue;
    const std::string line = fmt::format("{}: {} took longer than {} s; another rank has died, or never came so far",
                                         who_, phase_, limit_s_);
    std::_Exit(last_word_(line));  // no destructors: the other thread is inside MPI
  }
}

}  // namespace hat
