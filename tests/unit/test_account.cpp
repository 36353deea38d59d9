#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "hat/metrics/account.hpp"

namespace hat {
namespace {

double seconds_of(Account& account, Activity activity) { return account.seconds()[static_cast<size_t>(activity)]; }

void pass(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(Account, StartsInOther) {
  Account account;
  pass(5);
  EXPECT_GE(seconds_of(account, Activity::other), 0.005);
  EXPECT_EQ(account.change(Activity::compute), Activity::other);
}

TEST(Account, ScopesNestAndGoBack) {
  Account account;
  {
    const ActivityScope compute(account, Activity::compute);
    pass(4);
    {
      const ActivityScope wait(account, Activity::wait_pull);
      pass(8);
    }
    EXPECT_EQ(account.change(Activity::compute), Activity::compute) << "back in the outer scope";
    pass(4);
  }
  EXPECT_EQ(account.change(Activity::other), Activity::other);
  EXPECT_GE(seconds_of(account, Activity::compute), 0.008);
  EXPECT_GE(seconds_of(account, Activity::wait_pull), 0.008);
  for (const Activity unused : {Activity::wait_barrier, Activity::wait_work, Activity::push_blocked}) {
    EXPECT_EQ(seconds_of(account, unused), 0.0);
  }
}

TEST(Account, AScopeEndedByAnExceptionGoesBackToo) {
  Account account;
  try {
    const ActivityScope wait(account, Activity::wait_work);
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(account.change(Activity::compute), Activity::other);
}

TEST(Account, SumsEqualTheWallClock) {
  const double before = now_s();
  Account account;
  const double start = now_s();
  for (int i = 0; i < 200; ++i) {
    const ActivityScope scope(account, static_cast<Activity>(i % kActivities));
    if (i % 20 == 0) pass(1);
  }
  const double end = now_s();
  const std::vector<double> seconds = account.seconds();
  const double after = now_s();
  ASSERT_EQ(seconds.size(), static_cast<size_t>(kActivities));
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  EXPECT_GE(sum, end - start - 1e-9);
  EXPECT_LE(sum, after - before + 1e-9);
}

TEST(Account, EveryActivityHasAName) {
  EXPECT_STREQ(kActivityNames[static_cast<size_t>(Activity::compute)], "compute");
  EXPECT_STREQ(kActivityNames[static_cast<size_t>(Activity::wait_barrier)], "wait_barrier");
  EXPECT_STREQ(kActivityNames[static_cast<size_t>(Activity::other)], "other");
}

}  // namespace
}  // namespace hat
