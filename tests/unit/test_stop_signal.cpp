#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "hat/core/stop_signal.hpp"

namespace hat {
namespace {

constexpr int kRight = 3;

/// Exits with kRight if so it is.
[[noreturn]] void end(bool is_right) { std::_Exit(is_right ? kRight : kRight + 1); }

TEST(StopSignal, TheFirstOneCounts) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto two = [] {
    catch_stop_signals();
    bool is_right = stop_signal() == 0;
    ::kill(::getpid(), SIGTERM);
    is_right = is_right && stop_signal() == SIGTERM;
    ::kill(::getpid(), SIGUSR1);
    end(is_right && stop_signal() == SIGTERM);
  };
  EXPECT_EXIT(two(), ::testing::ExitedWithCode(kRight), "");
}

// A handler's frame goes to where the stack pointer of the interrupted thread is, which in products of oneDNN may be
// the heap (a flood of signals from another process corrupts it within seconds): there must be none, in no thread.
TEST(StopSignal, NoHandlerInterruptsAThread) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto look = [] {
    catch_stop_signals();
    bool is_right = true;
    std::thread([&] {
      sigset_t blocked;
      pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
      for (const int signal : {SIGTERM, SIGUSR1}) {
        struct sigaction action {};
        sigaction(signal, nullptr, &action);
        is_right = is_right && action.sa_handler == SIG_DFL && sigismember(&blocked, signal) == 1;
      }
    }).join();
    end(is_right);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(kRight), "");
}

}  // namespace
}  // namespace hat
