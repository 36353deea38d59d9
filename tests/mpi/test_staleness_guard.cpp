#include <algorithm>
#include <thread>

#include "hat/core/error.hpp"
#include "mpi_test_main.hpp"
#include "worker/staleness_guard.hpp"

// One rank, server and worker at once: it looks into its own window.

namespace hat {
namespace {

RunPlan unbounded_plan(const StalenessLimitConfig& limit) {
  Deck deck;
  deck.model = {.width = 8, .layers = 1, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.staleness = kUnbounded;
  deck.barriers = {"none"};
  deck.staleness_limit = limit;
  return make_run_plan(deck, plan_roles({0}, 1, Placement::packed));
}

/// Block 1 lies in two parts.
RunPlan with_a_split_block(RunPlan plan) {
  const auto whole = static_cast<size_t>(plan.shards.parts_of_block[1].front());
  Part second = plan.shards.parts[whole];
  plan.shards.parts[whole].count = second.begin = 10;
  second.count -= 10;
  plan.shards.parts_of_block[1].push_back(static_cast<int64_t>(plan.shards.parts.size()));
  plan.shards.parts_of_server[0].push_back(static_cast<int64_t>(plan.shards.parts.size()));
  plan.shards.parts.push_back(second);
  plan.slots = make_slot_table(plan.shards, plan.roles, plan.slot_count, PullFormat::fp32);
  return plan;
}

struct Rank {
  explicit Rank(const RunPlan& run_plan)
      : plan(run_plan), window(world, plan.slots.window_bytes.front()), waiting("worker 0", 10, account, [] {}) {
    for (const PartSlots& part : plan.slots.parts) publishers.emplace_back(window, part);
    publish(0);
  }
  void publish(int64_t version) {
    for (size_t part = 0; part < publishers.size(); ++part) publish_part(part, version);
  }
  void publish_part(size_t part, int64_t version) {
    publishers[part].begin(version);
    publishers[part].publish(version);
  }
  /// The forward pass of a unit.
  void compute_with(int64_t version) {
    for (int64_t block = 0; block < block_count(); ++block) {
      guard.asked(block);
      guard.took(block, version);
    }
  }
  int64_t block_count() const { return std::ssize(plan.layout.blocks); }

  RunPlan plan;
  Communicator world = Communicator::world();
  Window window;
  Account account;
  Waiting waiting;
  std::vector<SlotPublisher> publishers;
  StalenessGuard guard{plan, window, waiting};
};

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(StalenessGuard, AUnitOverTheLimitIsComputedAgainWithNewerVersions) {
  Rank rank(unbounded_plan({.versions = 1, .action = OverLimit::recompute}));
  rank.compute_with(0);
  rank.publish(1);
  EXPECT_FALSE(rank.guard.must_recompute()) << "one version is within the limit";
  rank.publish(2);
  EXPECT_TRUE(rank.guard.must_recompute());
  for (int64_t block = 0; block < rank.block_count(); ++block) EXPECT_EQ(rank.guard.oldest_version(block), 2);
  rank.compute_with(2);
  EXPECT_FALSE(rank.guard.must_recompute());
  EXPECT_EQ(rank.guard.finish_unit(), 1);
  EXPECT_EQ(rank.guard.oldest_version(0), 0) << "the next unit may take what it was asked for ahead";
  rank.compute_with(2);
  EXPECT_FALSE(rank.guard.must_recompute());
  EXPECT_EQ(rank.guard.finish_unit(), 0);
}

TEST(StalenessGuard, NotForEver) {
  Rank rank(unbounded_plan({.versions = 1, .action = OverLimit::recompute}));
  int64_t version = 0;
  for (int unit = 0; unit < 2; ++unit) {
    for (int time = 0; time <= StalenessGuard::kMostTimes; ++time) {
      rank.compute_with(version);
      for (int i = 0; i < 2; ++i) rank.publish(++version);
      EXPECT_EQ(rank.guard.must_recompute(), time < StalenessGuard::kMostTimes) << "time " << time;
    }
    EXPECT_EQ(rank.guard.finish_unit(), StalenessGuard::kMostTimes);
  }
}

TEST(StalenessGuard, OtherActionsLeaveItToTheServers) {
  for (const OverLimit action : {OverLimit::apply, OverLimit::scale}) {
    Rank rank(unbounded_plan({.versions = 1, .action = action}));
    rank.compute_with(0);
    rank.publish(1);
    rank.publish(2);
    EXPECT_FALSE(rank.guard.must_recompute());
    EXPECT_EQ(rank.guard.finish_unit(), 0);
  }
}

TEST(StalenessGuard, ABlockIsAsNewAsTheOldestOfItsParts) {
  Rank rank(with_a_split_block(unbounded_plan({.versions = 1, .action = OverLimit::recompute})));
  rank.compute_with(0);
  const std::vector<int64_t>& parts = rank.plan.shards.parts_of_block[1];
  ASSERT_EQ(parts.size(), 2U);
  for (const int64_t version : {1, 2}) rank.publish_part(static_cast<size_t>(parts[1]), version);
  EXPECT_FALSE(rank.guard.must_recompute()) << "a pull would not get anything newer";
  for (const int64_t version : {1, 2}) rank.publish_part(static_cast<size_t>(parts[0]), version);
  EXPECT_TRUE(rank.guard.must_recompute());
  EXPECT_EQ(rank.guard.oldest_version(1), 2);
  EXPECT_EQ(rank.guard.oldest_version(0), 0) << "of the others there is nothing newer";
}

TEST(StalenessGuard, AgeCountsFromWhenItWasAskedFor) {
  Rank rank(unbounded_plan({.seconds = 0.1, .action = OverLimit::recompute}));
  rank.guard.asked_ahead(0);
  sleep_for(0.15);
  rank.guard.asked_ahead(0);  // for the unit after that
  rank.compute_with(0);
  EXPECT_GE(rank.guard.age_s(0), 0.15);
  EXPECT_LT(rank.guard.age_s(1), rank.guard.age_s(0)) << "was not asked for ahead";
  EXPECT_TRUE(rank.guard.must_recompute()) << "0.1 s is the limit";
  rank.compute_with(0);
  EXPECT_LT(rank.guard.age_s(0), 0.15) << "asked for again";
  rank.guard.finish_unit();
}

TEST(StalenessGuard, UnitsComeInTheOrderInWhichTheyWereAskedFor) {
  Rank rank(unbounded_plan({.seconds = 100, .action = OverLimit::recompute}));
  rank.guard.asked_ahead(0);
  sleep_for(0.1);
  rank.guard.asked_ahead(0);
  rank.guard.asked(0);
  rank.guard.took(0, 0);
  const double first = rank.guard.age_s(0);
  rank.guard.asked(0);
  rank.guard.took(0, 0);
  EXPECT_GE(first, rank.guard.age_s(0) + 0.09);
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
