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

TEST(Account, MpiInsideAPassIsOtherAndCounted) {
  Account account;
  {
    const MpiScope outside(account);  // no pass: stays what it was, and is not counted
    pass(3);
  }
  {
    const ActivityScope compute(account, Activity::compute);
    pass(4);
    {
      const MpiScope mpi(account);
      EXPECT_EQ(account.current(), Activity::other);
      pass(6);
    }
    EXPECT_EQ(account.current(), Activity::compute);
    {
      const MpiScope mpi(account);
      const ActivityScope server(account, Activity::other);  // of the same process: other, but no MPI
      pass(10);
    }
    const ActivityScope wait(account, Activity::wait_pull);
    const MpiScope waiting(account);
    pass(5);
  }
  const AccountReading reading = account.reading();
  EXPECT_GE(reading.mpi_seconds, 0.006);
  EXPECT_LE(reading.mpi_seconds, seconds_of(account, Activity::other) - 0.013);
  EXPECT_GE(seconds_of(account, Activity::wait_pull), 0.005);
  EXPECT_GE(seconds_of(account, Activity::compute), 0.004);
}

TEST(Account, ARingThatGathersCountsTwiceAtMostTheWait) {
  Account account;
  account.set_ring_gathering(true);
  pass(20);  // not waited for
  account.set_ring_gathering(false);
  {
    const ActivityScope wait(account, Activity::wait_barrier);
    pass(200);
    account.set_ring_gathering(true);
    pass(20);
  }
  const double twice = account.reading().barrier_transfer_seconds;
  EXPECT_GE(twice, 0.040);
  EXPECT_LT(twice, 0.200) << "the time before the gathering does not count";
  {
    const ActivityScope wait(account, Activity::wait_barrier);
    pass(30);  // all of it gathering
  }
  const AccountReading reading = account.reading();
  const double whole = reading.barrier_transfer_seconds - twice;
  EXPECT_GE(whole, 0.030);
  EXPECT_LE(reading.barrier_transfer_seconds, reading.seconds[static_cast<size_t>(Activity::wait_barrier)]);
  EXPECT_LT(whole, reading.seconds[static_cast<size_t>(Activity::wait_barrier)] - 0.220 + 1e-3);
}

TEST(Account, TheLastPushOfAWaitIsATransfer) {
  Account account;
  const auto wait = [&](int milliseconds, double travel_s) {
    const double before = account.reading().barrier_transfer_seconds;
    {
      const ActivityScope scope(account, Activity::wait_barrier);
      pass(milliseconds);
      if (travel_s > 0) account.set_push_travel(travel_s);
    }
    return account.reading().barrier_transfer_seconds - before;
  };
  EXPECT_NEAR(wait(30, 0.01), 0.01, 1e-9);
  const double waited_before = seconds_of(account, Activity::wait_barrier);
  const double all = wait(20, 10.0);  // it left long before anybody waited
  EXPECT_NEAR(all, seconds_of(account, Activity::wait_barrier) - waited_before, 1e-9);
  EXPECT_EQ(wait(10, 0), 0.0) << "of the waits before";
  account.set_push_travel(1.0);  // what was there at once was not waited for
  EXPECT_EQ(wait(10, 0), 0.0);
}

TEST(Account, PushesAndRingsTogetherAreNoMoreThanTheWait) {
  Account account;
  double waited = 0;
  for (const double travel_s : {0.01, 10.0}) {
    const double before = account.reading().barrier_transfer_seconds;
    {
      const ActivityScope wait(account, Activity::wait_barrier);
      pass(100);
      account.set_ring_gathering(true);
      pass(10);
      account.set_ring_gathering(false);
      account.set_push_travel(travel_s);
      account.set_push_travel(travel_s / 2);  // the longest counts
    }
    const double transfer = account.reading().barrier_transfer_seconds - before;
    const double wait = seconds_of(account, Activity::wait_barrier) - waited;
    waited += wait;
    EXPECT_GE(transfer, 0.03 - 1e-9);
    EXPECT_LE(transfer, wait + 1e-9);
    if (travel_s > 1) {
      EXPECT_NEAR(transfer, wait, 1e-9);
    }
  }
}

TEST(Account, ReadingACounterTellsNobody) {
  Account account;
  int told = 0;
  account.set_listener([&](Activity, double, double) { ++told; });
  {
    const ActivityScope wait(account, Activity::wait_pull);
    pass(5);
    EXPECT_GE(account.waited_for_parameters(), 0.005) << "the wait under way counts";
    EXPECT_EQ(told, 1) << "the change of activity";
  }
  const double waited = account.waited_for_parameters();
  pass(2);
  EXPECT_EQ(account.waited_for_parameters(), waited);
  EXPECT_EQ(told, 2);
}

TEST(Account, BeginsAfresh) {
  Account account;
  pass(5);
  account.begin();
  EXPECT_LT(wall_seconds(account.reading()), 0.005);
}

TEST(Account, SharesAndDifferences) {
  const AccountReading earlier{.seconds = {1, 1, 1, 1, 1, 1, 1}, .mpi_seconds = 0.5, .block_wait_seconds = {1, 2}};
  const AccountReading later{.seconds = {7, 2, 3, 3, 1, 2, 3},
                             .mpi_seconds = 1.5,
                             .barrier_transfer_seconds = 1,
                             .gang_transfer_seconds = 0.5,
                             .block_wait_seconds = {1, 5}};
  const AccountReading passed = difference(later, earlier);
  EXPECT_EQ(passed.seconds, (std::vector<double>{6, 1, 2, 2, 0, 1, 2}));
  EXPECT_EQ(passed.block_wait_seconds, (std::vector<double>{0, 3}));
  EXPECT_DOUBLE_EQ(wall_seconds(passed), 14);
  EXPECT_DOUBLE_EQ(utilization(passed), 6 / 14.0);
  EXPECT_DOUBLE_EQ(communication_share(passed), (1 + 1 + 1 + 0.5 + 1) / 14.0);  // pull, push, transfers, MPI
  EXPECT_EQ(utilization({}), 0);
  EXPECT_EQ(communication_share({}), 0);
  EXPECT_EQ(difference(later, {}).seconds, later.seconds);
  AccountReading sum;
  add(sum, earlier);
  add(sum, passed);
  EXPECT_EQ(sum.seconds, later.seconds);
}

TEST(Account, TheListenerHearsEveryStretchOnce) {
  Account account;
  std::vector<std::pair<Activity, double>> heard;
  double end = -1;
  account.set_listener([&](Activity activity, double from, double to) {
    if (end >= 0) {
      EXPECT_EQ(from, end) << "no gap and no overlap";
    }
    end = to;
    heard.emplace_back(activity, to - from);
  });
  {
    const ActivityScope compute(account, Activity::compute);
    pass(2);
    const ActivityScope wait(account, Activity::wait_work);
    pass(2);
  }
  const AccountReading reading = account.reading();
  std::vector<double> seconds(kActivities, 0.0);
  for (const auto& [activity, length] : heard) seconds[static_cast<size_t>(activity)] += length;
  for (size_t a = 0; a < kActivities; ++a) EXPECT_NEAR(seconds[a], reading.seconds[a], 1e-9) << kActivityNames[a];
}

TEST(Account, EveryActivityHasAName) {
  EXPECT_STREQ(kActivityNames[static_cast<size_t>(Activity::compute)], "compute");
  EXPECT_STREQ(kActivityNames[static_cast<size_t>(Activity::wait_barrier)], "wait_barrier");
  EXPECT_STREQ(kActivityNames[static_cast<size_t>(Activity::other)], "other");
}

}  // namespace
}  // namespace hat
