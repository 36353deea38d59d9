#include <gtest/gtest.h>

#include "hat/commands/longtail_figures.hpp"
#include "hat/commands/policy_simulation.hpp"
#include "hat/metrics/account.hpp"

namespace hat {
namespace {

/// Four steps of 10 tokens; validation before training ends at 100 s.
RunResult four_steps() {
  RunResult result;
  result.evaluations.push_back({.step = 0, .loss = 5, .bits_per_byte = 0, .seconds = 100});
  for (int64_t i = 0; i < 4; ++i) {
    const double loss = 4.0 - static_cast<double>(i);  // 4, 3, 2, 1
    result.steps.push_back(
        {.step = i + 1, .nats = 10 * loss, .tokens = 10, .seconds = 101.0 + 2.0 * static_cast<double>(i)});
  }
  result.evaluations.push_back({.step = 4, .loss = 1.5, .bits_per_byte = 0, .seconds = 110});
  result.tokens = 40;
  result.staleness_counts = {3, 0, 1};
  WorkerSummary worker;
  worker.account.seconds.assign(kActivities, 0.0);
  worker.account.seconds[static_cast<size_t>(Activity::compute)] = 6;
  worker.account.seconds[static_cast<size_t>(Activity::wait_pull)] = 3;
  worker.account.seconds[static_cast<size_t>(Activity::other)] = 1;
  worker.pulled_bytes = 60;
  worker.pushed_bytes = 20;
  worker.emulated_s = 5;
  result.workers = {worker, worker};
  return result;
}

Deck emulated_deck() {
  Deck deck;
  deck.model.vocabulary = 257;
  deck.staleness = 0;
  deck.barriers = {"none"};
  deck.emulation.device.speed = {10};
  deck.emulation.device.busy_watts = 100;
  deck.emulation.device.idle_watts = 10;
  deck.emulation.length_scale = 4;
  return deck;
}

TEST(LongtailFigures, SmoothedLossAndWhenItIsReached) {
  const RunResult result = four_steps();
  EXPECT_EQ(smoothed_loss(result, 1), (std::vector<double>{4, 3, 2, 1}));
  EXPECT_EQ(smoothed_loss(result, 2), (std::vector<double>{4, 3.5, 2.5, 1.5}));
  EXPECT_DOUBLE_EQ(seconds_to_loss(result, 1, 1.0).value(), 7);  // the last step, 107 s less the 100
  EXPECT_DOUBLE_EQ(seconds_to_loss(result, 1, 2.5).value(), 4);  // half way between 3 s and 5 s
  EXPECT_DOUBLE_EQ(seconds_to_loss(result, 1, 9.0).value(), 1);  // after the first step
  EXPECT_FALSE(seconds_to_loss(result, 1, 0.5).has_value());
}

TEST(LongtailFigures, OfARunByHand) {
  // 7 s of two devices of 10 FLOP/s are 140 FLOP, of which 70 were asked for.
  const std::vector<std::vector<double>> costs{{30, 10}, {10}, {10}, {10}};
  const LongtailFigures figures = figures_of(emulated_deck(), costs, four_steps(), 2);
  EXPECT_DOUBLE_EQ(figures.seconds, 7);
  EXPECT_DOUBLE_EQ(figures.utilization.value(), 0.5);
  EXPECT_DOUBLE_EQ(figures.ideal.value(), 70.0 / 120.0);  // steps of 3, 1, 1, 1 s
  EXPECT_EQ(figures.charged_tokens, 160);
  EXPECT_DOUBLE_EQ(figures.loss, 1.5);
  EXPECT_DOUBLE_EQ(figures.activity_shares[static_cast<size_t>(Activity::compute)], 0.6);
  EXPECT_DOUBLE_EQ(figures.activity_shares[static_cast<size_t>(Activity::other)], 0.1);
  EXPECT_DOUBLE_EQ(figures.communication_share, 0.3);
  EXPECT_FALSE(figures.counted_joules.has_value());  // the summaries have no counters
  EXPECT_DOUBLE_EQ(figures.bytes_per_token, 4);
  EXPECT_DOUBLE_EQ(figures.staleness_mean, 0.5);
  EXPECT_EQ(figures.staleness_most, 2);
  EXPECT_DOUBLE_EQ(figures.joules.value(), 100 * 10 + 10 * (14 - 10));
}

TEST(LongtailFigures, SpeedsOfDisturbedDevices) {
  Deck deck = emulated_deck();
  EmulatedDeviceConfig& device = deck.emulation.device;
  device.stall_every_s = 3;
  device.stall_for_s = 1;
  device.disturbed = {"1"};
  EXPECT_EQ(device_speeds(deck, 2), (std::vector<double>{10, 7.5}));
  device.stall_every_s = 0;
  device.slow_every_s = 10;
  device.slow_for_s = 5;
  device.slow_factor = 2;
  EXPECT_EQ(device_speeds(deck, 2), (std::vector<double>{10, 7.5}));
}

TEST(LongtailFigures, IdealFollowsDispatchStalenessAndBarriers) {
  Deck deck = emulated_deck();
  const std::vector<std::vector<double>> costs{{4, 2, 2, 4}, {4}};
  deck.dispatch = Dispatch::static_;
  EXPECT_DOUBLE_EQ(ideal_utilization(deck, costs, 2).value(), 16 / (2 * (6.0 + 4)));
  deck.dispatch = Dispatch::sorted;  // 4 4 2 2: 4 + 2 each
  EXPECT_DOUBLE_EQ(ideal_utilization(deck, costs, 2).value(), 16 / (2 * (6.0 + 4)));
  deck.staleness = 1;
  EXPECT_FALSE(ideal_utilization(deck, costs, 2).has_value());  // no simulation of fixed shares with staleness
  deck.dispatch = Dispatch::on_demand;
  const std::vector<double> speeds{10, 10};
  EXPECT_DOUBLE_EQ(ideal_utilization(deck, costs, 2).value(), 16 / (20 * on_demand_seconds(costs, speeds, 1)));
  deck.barriers = {"embedding"};
  EXPECT_DOUBLE_EQ(ideal_utilization(deck, costs, 2).value(), 16 / (20 * on_demand_seconds(costs, speeds, 1, 0.0)));
  deck.staleness = kUnbounded;
  EXPECT_FALSE(ideal_utilization(deck, costs, 2).has_value());
}

TEST(LongtailFigures, DepthOfBlocks) {
  const Deck deck = emulated_deck();
  EXPECT_EQ(depth_of(deck, 0), 0.0);
  EXPECT_EQ(depth_of(deck, 1), 0.0);  // the embedding costs nothing
  EXPECT_LT(depth_of(deck, 4), depth_of(deck, 5));
  EXPECT_LT(depth_of(deck, 9), 1.0);
}

}  // namespace
}  // namespace hat
