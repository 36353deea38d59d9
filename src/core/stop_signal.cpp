#include "hat/core/stop_signal.hpp"

#include <atomic>
#include <csignal>
#include <ctime>

namespace hat {

namespace {

std::atomic<int> first_signal{0};
std::atomic<bool> catches{false};

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGUSR1}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

// No handler: its frame (2.5 KB with AVX-512) goes to where the stack pointer of the interrupted thread is, and
// products of oneDNN use that register for other things. A handler that did nothing but store a number has overwritten
// the heap there. So the signals are blocked, in this thread and those that it starts, and stay pending until they are
// asked for.
void catch_stop_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  catches = true;
}

int stop_signal() noexcept {
  if (catches && first_signal == 0) {
    const sigset_t signals = stop_signals();
    const timespec at_once{};
    const int signal = sigtimedwait(&signals, nullptr, &at_once);
    int none = 0;
    if (signal > 0) first_signal.compare_exchange_strong(none, signal);
  }
  return first_signal;
}

std::string signal_name(int signal) {
  if (signal == SIGTERM) return "SIGTERM";
  if (signal == SIGUSR1) return "SIGUSR1";
  return "signal " + std::to_string(signal);
}

}  // namespace hat
