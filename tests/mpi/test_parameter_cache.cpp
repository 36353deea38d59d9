#include <algorithm>

#include "hat/core/error.hpp"
#include "hat/gradient/run_plan.hpp"
#include "mpi_test_main.hpp"
#include "worker/parameter_cache.hpp"

// One rank, server and worker at once.

namespace hat {
namespace {

using Rule = SlotPull::Rule;

Deck tiny_deck(int64_t staleness) {
  Deck deck;
  deck.model = {.width = 8, .layers = 1, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.staleness = staleness;
  deck.barriers = {"none"};
  return deck;
}

/// A server that publishes when it is told to, and the cache of the worker beside it.
struct Rank {
  explicit Rank(const RunPlan& run_plan, double timeout_s = 10)
      : plan(run_plan), window(world, plan.slots.window_bytes.front()), waiting("worker 0", timeout_s, account, [this] {
          if (server) server();
        }) {
    for (const PartSlots& part : plan.slots.parts) publishers.emplace_back(window, part);
    cache.emplace(plan, world.rank(), Device{}, window, nullptr, waiting);
  }

  /// Every value of every block is `version`.
  void publish(int64_t version) {
    for (SlotPublisher& part : publishers) {
      std::ranges::fill(part.begin(version), static_cast<float>(version));
      part.publish(version);
    }
  }
  bool in_window(const float* values) const {
    const auto* at = reinterpret_cast<const std::byte*>(values);
    return at >= window.local() && at < window.local() + plan.slots.window_bytes.front();
  }
  int64_t block_count() const { return static_cast<int64_t>(plan.layout.blocks.size()); }
  void expect_values(int64_t block, const float* values, int64_t version) const {
    for (int64_t i = 0; i < plan.layout.blocks[static_cast<size_t>(block)].size; ++i) {
      ASSERT_EQ(values[i], static_cast<float>(version)) << "value " << i << " of block " << block;
    }
  }

  RunPlan plan;
  Communicator world = Communicator::world();
  Window window;
  Account account;
  std::function<void()> server;  // called while the cache waits
  Waiting waiting;
  std::vector<SlotPublisher> publishers;
  std::optional<ParameterCache> cache;
};

RunPlan plan_of(const Deck& deck) { return make_run_plan(deck, plan_roles({0}, 1, Placement::packed)); }

// A unit of a gang takes the version that all members have, between units that take the newest: what the next unit is
// told to be unchanged is not what it had.
TEST(ParameterCache, TheFreshestBehindAnExactOne) {
  Deck deck = tiny_deck(2);
  deck.prefetch_depth = 2;
  deck.pull_format = PullFormat::bf16;  // copies
  Rank rank(plan_of(deck));
  for (int64_t version = 0; version < 3; ++version) rank.publish(version);
  rank.expect_values(0, rank.cache->acquire(0, {.version = 1, .rule = Rule::freshest}), 2);
  rank.cache->prefetch(0, {.version = 1, .rule = Rule::exact});
  rank.cache->prefetch(0, {.version = 2, .rule = Rule::freshest});
  for (int i = 0; i < 20; ++i) rank.cache->progress();
  rank.expect_values(0, rank.cache->acquire(0, {.version = 1, .rule = Rule::exact}), 1);
  rank.expect_values(0, rank.cache->acquire(0, {.version = 2, .rule = Rule::freshest}), 2);
  EXPECT_EQ(rank.cache->version(0), 2);
}

TEST(ParameterCache, OwnSlotsAreReadWhereTheyLie) {
  for (const int64_t staleness : {0, 1, 2}) {
    Rank rank(plan_of(tiny_deck(staleness)));
    rank.publish(0);
    for (int64_t step = 0; step < 9; ++step) {
      const int64_t oldest = std::max<int64_t>(0, step - staleness);
      for (int64_t block = 0; block < rank.block_count(); ++block) {
        rank.cache->prefetch(block, {.version = oldest, .rule = Rule::exact});
        const float* values = rank.cache->acquire(block, {.version = oldest, .rule = Rule::exact});
        EXPECT_TRUE(rank.in_window(values));
        rank.expect_values(block, values, oldest);
        EXPECT_EQ(rank.cache->version(block), oldest);
        values = rank.cache->acquire(block, {.version = oldest, .rule = Rule::freshest});
        EXPECT_TRUE(rank.in_window(values));
        rank.expect_values(block, values, step);
        EXPECT_EQ(rank.cache->version(block), step);
      }
      // The update of this step opens the next slot: what was read, the oldest version too, stays.
      rank.cache->acquire(0, {.version = oldest, .rule = Rule::exact});
      rank.publish(step + 1);
      EXPECT_EQ(rank.cache->version(0), oldest);
    }
    EXPECT_EQ(rank.cache->counters().accepted, 0);
    EXPECT_EQ(rank.cache->counters().bytes, 0);
  }
}

TEST(ParameterCache, WaitsForAVersionInPlace) {
  Rank rank(plan_of(tiny_deck(1)));
  rank.publish(0);
  int64_t calls = 0;
  rank.server = [&] {
    if (++calls == 3) rank.publish(1);
  };
  rank.expect_values(1, rank.cache->acquire(1, {.version = 1, .rule = Rule::exact}), 1);
  EXPECT_EQ(calls, 3);
}

TEST(ParameterCache, NoticesThatASlotWasOverwritten) {
  Rank rank(plan_of(tiny_deck(0)));
  rank.publish(0);
  rank.cache->acquire(1, {.version = 0, .rule = Rule::exact});
  rank.publish(1);
  EXPECT_EQ(rank.cache->version(1), 0);
  rank.publishers[1].begin(2);  // the slot of version 0 is opened
  EXPECT_THROW(rank.cache->version(1), Error);
  EXPECT_THROW(rank.cache->acquire(1, {.version = 0, .rule = Rule::exact}), Error);
  EXPECT_EQ(rank.cache->acquire(1, {.version = 1, .rule = Rule::exact})[0], 1.0F);
}

/// Copies outside of the window, with the right values.
void expect_copies(Rank& rank, int64_t block) {
  for (int64_t version = 0; version < 4; ++version) {
    rank.publish(version);
    const float* values = rank.cache->acquire(block, {.version = version, .rule = Rule::freshest});
    EXPECT_FALSE(rank.in_window(values));
    rank.expect_values(block, values, version);
  }
  EXPECT_EQ(rank.cache->counters().accepted, 4);
}

TEST(ParameterCache, CopiesWhatLiesInSeveralParts) {
  RunPlan plan = plan_of(tiny_deck(0));
  constexpr int64_t kBlock = 1;
  const auto whole = static_cast<size_t>(plan.shards.parts_of_block[kBlock].front());
  Part second = plan.shards.parts[whole];
  plan.shards.parts[whole].count = second.begin = 10;
  second.count -= 10;
  plan.shards.parts_of_block[kBlock].push_back(static_cast<int64_t>(plan.shards.parts.size()));
  plan.shards.parts_of_server[0].push_back(static_cast<int64_t>(plan.shards.parts.size()));
  plan.shards.parts.push_back(second);
  plan.slots = make_slot_table(plan.shards, plan.roles, plan.slot_count, PullFormat::fp32);
  Rank rank(plan);
  expect_copies(rank, kBlock);
  EXPECT_TRUE(rank.in_window(rank.cache->acquire(0, {.version = 3, .rule = Rule::exact})));
}

TEST(ParameterCache, CopiesRoundedAndUnboundedBlocks) {
  Deck deck = tiny_deck(0);
  deck.pull_format = PullFormat::bf16;
  Rank rounded(plan_of(deck));
  expect_copies(rounded, 1);
  Rank unbounded(plan_of(tiny_deck(kUnbounded)));
  expect_copies(unbounded, 1);
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
