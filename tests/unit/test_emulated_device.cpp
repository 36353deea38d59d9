#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hat/core/clock.hpp"
#include "worker/emulated_device.hpp"

namespace hat {
namespace {

Deck small_deck() {
  Deck deck;
  deck.model = {.width = 32, .layers = 2, .heads = 2, .vocabulary = 257};
  return deck;
}

void pass_time(double seconds) {
  for (const double end_s = now_s() + seconds; now_s() < end_s;) {
    const timespec nap{.tv_sec = 0, .tv_nsec = 100'000};
    nanosleep(&nap, nullptr);
  }
}

/// A worker with an emulated device and no arithmetic of its own.
struct Worker {
  explicit Worker(EmulatedDeviceConfig config, int number = 0)
      : device(config, ChargedCost(small_deck()), 3, number, waiting) {}

  /// One unit of documents or of a range, with `arithmetic_s` of real arithmetic before each backward part.
  template <typename Content = std::vector<int32_t>>
  double run_unit(const Content& content, int64_t unit = 0, double arithmetic_s = 0) {
    const double start_s = now_s();
    device.begin_unit(unit, content);
    const auto blocks = static_cast<int64_t>(ChargedCost(small_deck()).blocks().size());
    for (int64_t block = 0; block < blocks; ++block) device.before_forward(block);
    forward_s = now_s() - start_s;
    for (int64_t block = blocks - 1; block >= 0; --block) {
      if (arithmetic_s > 0) pass_time(arithmetic_s);
      device.after_backward(block);
    }
    return now_s() - start_s;
  }

  Account account;
  Waiting waiting{"worker", 10, account, [] {}};
  EmulatedDevice device;
  double forward_s = 0;  // of the unit run last
};

const std::vector<int32_t> kUnit{0, 100, 130, 400};

double unit_flop() {
  const ChargedCost cost(small_deck());
  return cost.flop(100) + cost.flop(30) + cost.flop(270);
}

/// A device on which kUnit takes this long. Sleeping is late by up to a millisecond on a busy machine.
EmulatedDeviceConfig device_of(double unit_s) { return {.speed = {unit_flop() / unit_s}}; }

constexpr double kTolerance = 0.05;

TEST(EmulatedDevice, UnitsLastAsLongAsTheirFlopAtItsSpeed) {
  Worker worker(device_of(0.2));
  EXPECT_NEAR(worker.run_unit(kUnit), 0.2, 0.2 * kTolerance);
  worker.device.resume();
  const ChargedCost cost(small_deck());
  const double expected_s = 0.2 * cost.flop(700) / unit_flop();
  EXPECT_NEAR(worker.run_unit({0, 700}), expected_s, expected_s * kTolerance);
  EXPECT_NEAR(worker.device.seconds(), 0.2 + expected_s, 1e-9);
}

TEST(EmulatedDevice, ARangeLastsAsLongAsItsShareOfTheDocument) {
  Worker worker(device_of(0.2));
  const ChargedCost cost(small_deck());
  worker.run_unit(GangRange{.bounds = {0, 300, 700}, .member = 1});
  EXPECT_NEAR(worker.device.seconds(), 0.2 * (cost.flop(700) - cost.flop(300)) / unit_flop(), 1e-9);
}

// All but the head's third passes before the backward pass.
TEST(EmulatedDevice, ForwardTakesAThirdOfEachBlock) {
  Worker worker(device_of(0.3));
  worker.run_unit(kUnit);
  const BlockFlop head = ChargedCost(small_deck()).blocks().back();
  const double expected_s = 0.1 * (1 - head.of(400, 0) / unit_flop());
  EXPECT_NEAR(worker.forward_s, expected_s, 0.3 * kTolerance);
}

TEST(EmulatedDevice, EachWorkerHasItsSpeed) {
  EmulatedDeviceConfig config = device_of(0.1);
  config.speed.push_back(config.speed.front() / 3);
  Worker fast(config, 0);
  Worker slow(config, 1);
  EXPECT_NEAR(fast.run_unit(kUnit), 0.1, 0.1 * kTolerance);
  slow.device.resume();
  EXPECT_NEAR(slow.run_unit(kUnit), 0.3, 0.3 * kTolerance);
}

TEST(EmulatedDevice, NoUnitHoldsUpARunThatShallEnd) {
  Worker worker(device_of(1e6));
  worker.device.end_soon();
  const double took_s = worker.run_unit(kUnit);
  EXPECT_GT(took_s, 4);  // units of ordinary length end as they would have
  EXPECT_LT(took_s, 8);
  EXPECT_LT(worker.run_unit(kUnit, 1), 1);
  EXPECT_NEAR(worker.device.seconds(), 2e6, 1e4);
}

// What sleeping or arithmetic was late by is caught up with: many short units take as long as they should together.
TEST(EmulatedDevice, LatenessDoesNotAddUp) {
  Worker worker(device_of(0.004));
  const double start_s = now_s();
  constexpr int kUnits = 100;
  for (int unit = 0; unit < kUnits; ++unit) worker.run_unit(kUnit, unit);
  EXPECT_NEAR(now_s() - start_s, 0.4, 0.4 * kTolerance);
  EXPECT_LT(worker.device.lag().mean_s, 0.004);
}

TEST(EmulatedDevice, ArithmeticThatIsTooSlowShowsAsLag) {
  Worker worker(device_of(0.006));
  worker.run_unit(kUnit);
  EXPECT_EQ(worker.device.lag().worst_s, 0);         // the first unit does not count
  worker.run_unit(kUnit, 1, /*arithmetic_s=*/0.02);  // five parts of which the device needs 4 ms together
  EXPECT_GT(worker.device.lag().worst_s, 0.08);
  EXPECT_GT(worker.device.lag().mean_s, 0.01);
}

// A device that waited begins when what it waited for is there; it has not worked meanwhile.
TEST(EmulatedDevice, BeginsAfterAWait) {
  Worker worker(device_of(0.1));
  const double there_s = now_s() + 0.15;
  worker.waiting.until(Activity::wait_pull, "parameters", [&] { return now_s() >= there_s; });
  EXPECT_NEAR(worker.run_unit(kUnit), 0.1, 0.1 * kTolerance);
  EXPECT_NEAR(worker.device.seconds(), 0.1, 1e-9);
}

TEST(EmulatedDevice, JitterHasTheMeanAndDeviationThatTheDeckNames) {
  EmulatedDeviceConfig config = device_of(1e-9);
  config.jitter = 0.5;
  Worker worker(config);
  constexpr int kUnits = 4000;
  double sum = 0;
  double squares = 0;
  double before_s = 0;
  for (int unit = 0; unit < kUnits; ++unit) {
    worker.run_unit(kUnit, unit);
    const double ratio = (worker.device.seconds() - before_s) / 1e-9;
    before_s = worker.device.seconds();
    sum += ratio;
    squares += ratio * ratio;
  }
  const double mean = sum / kUnits;
  EXPECT_NEAR(mean, 1.0, 0.04);
  EXPECT_NEAR(std::sqrt(squares / kUnits - mean * mean), 0.5, 0.06);
}

// The time of a stall is neither computed in nor paid at busy watts; the unit takes it all the same.
TEST(EmulatedDevice, AStallIsNoComputing) {
  EmulatedDeviceConfig config = device_of(0.02);
  config.stall_every_s = 0.02;
  config.stall_for_s = 0.1;
  Worker worker(config);
  double took_s = 0;
  worker.account.begin();
  for (int unit = 0; unit < 8; ++unit) {
    const ActivityScope scope(worker.account, Activity::compute);
    took_s += worker.run_unit(kUnit, unit);
  }
  const double computed_s = worker.account.seconds()[static_cast<size_t>(Activity::compute)];
  const double other_s = worker.account.seconds()[static_cast<size_t>(Activity::other)];
  EXPECT_NEAR(worker.device.busy_seconds(), 8 * 0.02, 1e-6);
  EXPECT_GE(worker.device.seconds(), worker.device.busy_seconds() + config.stall_for_s);
  EXPECT_NEAR(computed_s, worker.device.busy_seconds(), 0.05);
  EXPECT_NEAR(computed_s + other_s, took_s, 0.05);
  EXPECT_FALSE(worker.device.stands_still());
}

EmulatedDeviceConfig slow_phases() { return {.speed = {1}, .slow_every_s = 10, .slow_for_s = 4, .slow_factor = 3}; }

// In each period 4 s are slow: of 10 s, 6 + 4 / 3 s of work are done.
TEST(Disturbances, WorkInSlowPhasesTakesLonger) {
  Disturbances disturbances(slow_phases(), 5, 2);
  EXPECT_NEAR(disturbances.finish(100, 100 * (6 + 4.0 / 3)), 1100, 1e-4);
  // Short pieces one behind the other: none slower than 3, and slow in two fifths of the time.
  double now = 1100;
  double slow = 0;
  while (now < 2100) {
    const double end = disturbances.finish(now, 0.01);
    EXPECT_LE(end - now, 0.03 + 1e-6);
    if (end - now > 0.02) slow += end - now;
    now = end;
  }
  EXPECT_NEAR(slow, 400, 5);
}

TEST(Disturbances, PhasesOfWorkersBeginAtDifferentMoments) {
  Disturbances one(slow_phases(), 5, 1);
  Disturbances two(slow_phases(), 5, 2);
  EXPECT_NE(one.finish(0, 9), two.finish(0, 9));
}

TEST(Disturbances, OnlyTheWorkersNamedAreHit) {
  EmulatedDeviceConfig config = slow_phases();
  config.stall_every_s = 20;
  config.stall_for_s = 5;
  config.disturbed = {"3", "1"};
  Disturbances spared(config, 5, 2);
  Disturbances hit(config, 5, 3);
  EXPECT_EQ(spared.finish(0, 1000), 1000);
  EXPECT_GT(hit.finish(0, 1000), 1400);
}

// Gaps of 20 s on average and stalls of 5 s: a fifth of the time is lost. 20,000 stalls, 1 % standard error of the
// gaps.
TEST(Disturbances, StallsComeAtRandomAndNothingIsDoneInThem) {
  const EmulatedDeviceConfig config{.speed = {1}, .stall_every_s = 20, .stall_for_s = 5};
  Disturbances whole(config, 5, 0);
  const double end = whole.finish(0, 400'000);
  EXPECT_NEAR(end, 500'000, 5'000);
  EXPECT_NEAR(whole.stalled_s(), end - 400'000, 1e-3);
  // The same in pieces of 0.5 s: each is either undisturbed or longer by whole stalls.
  Disturbances pieces(config, 5, 0);
  double now = 0;
  for (int i = 0; i < 2000; ++i) {
    const double took = pieces.finish(now, 0.5) - now;
    EXPECT_NEAR(std::remainder(took - 0.5, 5.0), 0, 1e-5);
    now += took;
  }
  EXPECT_NEAR(now, Disturbances(config, 5, 0).finish(0, 1000), 1e-3);
}

}  // namespace
}  // namespace hat
