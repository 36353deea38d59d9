#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "hat/core/clock.hpp"
#include "hat/core/watchdog.hpp"

namespace hat {
namespace {

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// A program with threads is forked: the child begins anew.
class WatchdogDeathTest : public ::testing::Test {
 protected:
  WatchdogDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(WatchdogDeathTest, EndsTheProcessAndNamesThePhase) {
  EXPECT_EXIT(
      {
        Watchdog watchdog("rank 3");
        watchdog.enter("MPI_Init", 0.5);
        sleep_s(60);
      },
      ::testing::ExitedWithCode(1), "^hat: rank 3: MPI_Init took longer than 0.5 s");
}

TEST_F(WatchdogDeathTest, LeavesTheLastWordToOthers) {
  EXPECT_EXIT(
      {
        Watchdog watchdog("rank 3");
        watchdog.set_last_word([](const std::string& line) {
          std::fprintf(stderr, "last: %s\n", line.c_str());
          return 7;
        });
        watchdog.enter("MPI_Finalize", 0.5);
        sleep_s(60);
      },
      ::testing::ExitedWithCode(7), "^last: rank 3: MPI_Finalize");
}

TEST(Watchdog, WatchesOnlyThePhaseThatIsUnderWay) {
  Watchdog watchdog("rank 0");
  for (int phase = 0; phase < 4; ++phase) {  // each in time, not all together
    watchdog.enter("a phase", 1.5);
    sleep_s(0.5);
  }
  watchdog.leave();
  sleep_s(2);
}

TEST(Watchdog, EndsAtOnceWhenNothingIsWatched) {
  const double begin_s = now_s();
  { const Watchdog watchdog("rank 0"); }
  EXPECT_LT(now_s() - begin_s, 1);
}

}  // namespace
}  // namespace hat
