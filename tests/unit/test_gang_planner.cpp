#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "hat/ledger/gang_planner.hpp"

namespace hat {
namespace {

LedgerOptions options_for(int workers, SplitPolicy policy) {
  LedgerOptions options{.workers = workers, .unit_tokens = 1024, .area_weight = 1e-4};
  options.gang = {.policy = policy, .max_workers = workers, .forward_bytes = 1000, .backward_bytes = 1000, .layers = 4};
  return options;
}

/// A model that knows seconds: every worker does `speed` of cost a second.
UnitCostModel costs_of(const LedgerOptions& options, double speed) {
  UnitCostModel costs(options.workers, options.area_weight);
  for (int64_t worker = 0; worker < options.workers; ++worker) {
    for (const double tokens : {1024.0, 512.0, 1024.0, 2048.0}) {
      const UnitSize unit{.tokens = tokens, .area = tokens * tokens};
      costs.observe(worker, unit, costs.cost(unit) / speed);
    }
  }
  return costs;
}

/// One long sequence among short ones.
std::vector<Sequence> long_tail() {
  std::vector<Sequence> sequences{{.document = 0, .length = 16384}};
  for (int64_t i = 1; i < 32; ++i) sequences.push_back({.document = i, .length = 600 - i});
  return sequences;
}

std::vector<double> free_now(const LedgerOptions& options) {
  return std::vector<double>(static_cast<size_t>(options.workers), 100.0);
}

void expect_sound(const PlannedGang& gang, const Sequence& sequence, const LedgerOptions& options) {
  EXPECT_EQ(gang.workers.size(), gang.lengths.size());
  EXPECT_GE(gang.workers.size(), 2U);
  EXPECT_LE(std::ssize(gang.workers), options.gang.max_workers);
  EXPECT_EQ(std::accumulate(gang.lengths.begin(), gang.lengths.end(), int64_t{0}), sequence.length);
  EXPECT_EQ(std::set<int64_t>(gang.workers.begin(), gang.workers.end()).size(), gang.workers.size());
  for (const int64_t length : gang.lengths) EXPECT_GE(length, 1);
}

TEST(GangPlanner, SplitsWhatHoldsTheStepUp) {
  const LedgerOptions options = options_for(8, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  const GangPlanner planner(options, costs);
  const std::vector<Sequence> sequences = long_tail();
  const std::vector<PlannedGang> gangs = planner.plan(sequences, free_now(options), 0);
  ASSERT_FALSE(gangs.empty());
  EXPECT_EQ(gangs.front().place, 0U);
  for (const PlannedGang& gang : gangs) expect_sound(gang, sequences[gang.place], options);
  // Equal costs: later ranges see more and are shorter.
  const std::vector<int64_t>& lengths = gangs.front().lengths;
  EXPECT_TRUE(std::ranges::is_sorted(lengths, std::greater<>{}));
}

TEST(GangPlanner, NothingToGain) {
  const LedgerOptions options = options_for(8, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  const GangPlanner planner(options, costs);
  const std::vector<Sequence> equal(64, Sequence{.length = 500});
  EXPECT_TRUE(planner.plan(equal, free_now(options), 0).empty());
  EXPECT_TRUE(planner.plan({}, free_now(options), 0).empty());
}

TEST(GangPlanner, Policies) {
  const UnitCostModel costs = costs_of(options_for(8, SplitPolicy::never), 1e4);
  const std::vector<Sequence> sequences = long_tail();
  const LedgerOptions never = options_for(8, SplitPolicy::never);
  EXPECT_TRUE(GangPlanner(never, costs).plan(sequences, free_now(never), 0).empty());
  LedgerOptions always = options_for(8, SplitPolicy::always);
  EXPECT_EQ(GangPlanner(always, costs).plan(sequences, free_now(always), 0).size(), sequences.size());
  for (const PlannedGang& gang : GangPlanner(always, costs).plan(sequences, free_now(always), 0)) {
    EXPECT_EQ(gang.workers.size(), 8U);
    expect_sound(gang, sequences[gang.place], always);
  }
  // A sequence of three tokens has three members at most, one of a single token none.
  const std::vector<Sequence> tiny{{.length = 3}, {.length = 1}};
  const std::vector<PlannedGang> gangs = GangPlanner(always, costs).plan(tiny, free_now(always), 0);
  ASSERT_EQ(gangs.size(), 1U);
  EXPECT_EQ(gangs[0].workers.size(), 3U);
  always.gang.max_workers = 2;
  for (const PlannedGang& gang : GangPlanner(always, costs).plan(sequences, free_now(always), 0)) {
    EXPECT_EQ(gang.workers.size(), 2U);
  }
}

// What a link costs is weighed against what is gained: the slower it is, the fewer members, and then none.
TEST(GangPlanner, SlowLinks) {
  LedgerOptions options = options_for(8, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  options.gang.node_of_worker = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<Sequence> sequences = long_tail();
  size_t members = 9;
  for (const double bytes_per_s : {1e9, 1e8, 1e7, 1e6}) {
    options.gang.links.between = {.bytes_per_s = bytes_per_s, .latency_s = 1e-5};
    const std::vector<PlannedGang> gangs = GangPlanner(options, costs).plan(sequences, free_now(options), 0);
    const size_t now = gangs.empty() ? 1 : gangs.front().workers.size();
    EXPECT_LE(now, members) << bytes_per_s;
    members = now;
  }
  EXPECT_EQ(members, 1U);
  // Every layer waits for a message forward and one backward.
  options.gang.links.between = {.bytes_per_s = 1e9, .latency_s = 10};
  EXPECT_TRUE(GangPlanner(options, costs).plan(sequences, free_now(options), 0).empty());
}

TEST(GangPlanner, WorkersOfOneNodeArePreferred) {
  LedgerOptions options = options_for(8, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  options.gang.max_workers = 4;
  options.gang.node_of_worker = {0, 1, 0, 1, 0, 1, 0, 1};
  const std::vector<PlannedGang> gangs = GangPlanner(options, costs).plan(long_tail(), free_now(options), 0);
  ASSERT_FALSE(gangs.empty());
  for (const int64_t worker : gangs.front().workers) EXPECT_EQ(worker % 2, gangs.front().workers.front() % 2);
}

// Those that are free earliest, unless waiting for another one gains more.
TEST(GangPlanner, BusyWorkersAreLeftOut) {
  const LedgerOptions options = options_for(4, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  std::vector<double> free_at = free_now(options);
  free_at[1] += 1000;
  const std::vector<PlannedGang> gangs = GangPlanner(options, costs).plan(long_tail(), free_at, 0);
  ASSERT_FALSE(gangs.empty());
  EXPECT_EQ(std::ranges::count(gangs.front().workers, 1), 0);
}

// What members wait for each other is learnt, and with it how well gangs are predicted.
TEST(GangPlanner, LearnsWhatExchangesCost) {
  LedgerOptions options = options_for(4, SplitPolicy::automatic);
  options.gang.links.inside = {.bytes_per_s = 1e8, .latency_s = 0};
  const UnitCostModel costs = costs_of(options, 1e4);
  GangPlanner planner(options, costs);
  EXPECT_TRUE(std::isnan(planner.relative_error()));
  PlannedGang gang = planner.plan(long_tail(), free_now(options), 0).at(0);
  const double compute_s = gang.seconds - planner.exchange_seconds(gang.workers, gang.lengths);
  const double before = planner.exchange_seconds(gang.workers, gang.lengths);
  for (int i = 0; i < 50; ++i) planner.observe(gang, compute_s + 1.5 * before, compute_s);
  EXPECT_NEAR(planner.exchange_seconds(gang.workers, gang.lengths), 1.5 * before, 0.01 * before);
  EXPECT_GT(planner.relative_error(), 0);
}

// Links that were measured on a busy node are a thousand times faster or slower than it seemed: gangs that come all the
// same correct that, whether transfers or latencies were wrong, soon and in both directions.
TEST(GangPlanner, LearnsThatLinksWereMeasuredBadly) {
  constexpr double kWrong = 1000;
  LedgerOptions options = options_for(4, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  const PlannedGang gang = GangPlanner(options, costs).plan(long_tail(), free_now(options), 0).at(0);
  const double compute_s = gang.seconds;  // messages take no time
  const LinkSpeed fast{.bytes_per_s = 1e10, .latency_s = 1e-5};
  for (const LinkSpeed& measured : {LinkSpeed{.bytes_per_s = fast.bytes_per_s / kWrong, .latency_s = fast.latency_s},
                                    LinkSpeed{.bytes_per_s = fast.bytes_per_s, .latency_s = 1.0}}) {
    options.gang.links.inside = measured;
    GangPlanner planner(options, costs);
    options.gang.links.inside = fast;
    const double really_s = GangPlanner(options, costs).exchange_seconds(gang.workers, gang.lengths);
    options.gang.links.inside = measured;
    ASSERT_GT(planner.exchange_seconds(gang.workers, gang.lengths), 100 * really_s);
    for (int i = 0; i < 20; ++i) planner.observe(gang, compute_s + really_s, compute_s);
    EXPECT_LT(planner.exchange_seconds(gang.workers, gang.lengths), 0.1 * compute_s);
    EXPECT_FALSE(planner.plan(long_tail(), free_now(options), 0).empty());
  }
}

// What a check costs stays within what may be risked; there is none where links are not what speaks against gangs.
TEST(GangPlanner, ChecksOfLinks) {
  LedgerOptions options = options_for(8, SplitPolicy::automatic);
  const UnitCostModel costs = costs_of(options, 1e4);
  options.gang.links.inside = {.bytes_per_s = 1e6, .latency_s = 1e-5};
  const GangPlanner planner(options, costs);
  std::vector<Sequence> sequences{{.length = 16384}};
  for (int64_t length = 600; length > 8; length -= 16) sequences.push_back({.length = length});
  ASSERT_TRUE(planner.plan(sequences, free_now(options), 0).empty());
  int64_t length = 0;
  for (const double wait_s : {0.03, 0.1, 1e9}) {
    const auto check = planner.link_check(sequences, free_now(options), 0, wait_s);
    ASSERT_TRUE(check) << wait_s;
    expect_sound(*check, sequences[check->place], options);
    EXPECT_EQ(check->workers.size(), 2U);
    EXPECT_EQ(check->reason, GangReason::link_check);
    EXPECT_LE(check->exchange_s, wait_s);
    EXPECT_LT(check->exchange_s, 1);  // and not much of the step
    EXPECT_GE(sequences[check->place].length, length);
    length = sequences[check->place].length;
  }
  EXPECT_FALSE(planner.link_check(sequences, free_now(options), 0, 1e-9));
  const std::vector<Sequence> equal(64, Sequence{.length = 500});
  EXPECT_FALSE(planner.link_check(equal, free_now(options), 0, 1e9));
  for (const SplitPolicy policy : {SplitPolicy::never, SplitPolicy::always}) {
    options.gang.policy = policy;
    EXPECT_FALSE(GangPlanner(options, costs).link_check(sequences, free_now(options), 0, 1e9));
  }
}

}  // namespace
}  // namespace hat
