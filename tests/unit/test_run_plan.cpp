#include <algorithm>

#include "hat/gradient/run_plan.hpp"
#include "io_support.hpp"
#include "model_support.hpp"

namespace hat {
namespace {

Deck deck_of(int64_t staleness) {
  Deck deck;
  deck.model = test::small_llama();
  deck.staleness = staleness;
  deck.barriers = {"upper"};
  return deck;
}

RolePlan roles_of(int ranks, int64_t servers) {
  return plan_roles(std::vector<int>(static_cast<size_t>(ranks), 0), servers, Placement::packed);
}

TEST(RunPlan, PartsOfAServerLieBehindEachOther) {
  for (const int64_t servers : {1, 2, 3}) {
    for (const int64_t staleness : {0, 1, 4}) {
      const RunPlan plan = make_run_plan(deck_of(staleness), roles_of(5, servers));
      EXPECT_EQ(plan.slot_count, staleness + 2);
      ASSERT_EQ(plan.slots.parts.size(), plan.shards.parts.size());
      std::vector<int64_t> used(static_cast<size_t>(servers), 0);
      for (size_t i = 0; i < plan.shards.parts.size(); ++i) {
        const Part& part = plan.shards.parts[i];
        const PartSlots& slots = plan.slots.parts[i];
        EXPECT_EQ(slots.server_rank, plan.roles.rank_of_server[static_cast<size_t>(part.server)]);
        EXPECT_EQ(slots.count, part.count);
        EXPECT_EQ(slots.slots, plan.slot_count);
        int64_t& end = used[static_cast<size_t>(part.server)];
        EXPECT_EQ(slots.offset, end);
        end += slots.size_bytes();
      }
      EXPECT_EQ(plan.slots.window_bytes, used);
    }
  }
}

TEST(RunPlan, Bf16PullsHalveTheSlots) {
  Deck deck = deck_of(1);
  const RunPlan fp32 = make_run_plan(deck, roles_of(3, 1));
  deck.pull_format = PullFormat::bf16;
  const RunPlan bf16 = make_run_plan(deck, roles_of(3, 1));
  ASSERT_EQ(fp32.slots.parts.size(), bf16.slots.parts.size());
  for (size_t i = 0; i < fp32.slots.parts.size(); ++i) {
    EXPECT_EQ(fp32.slots.parts[i].body_bytes(), fp32.shards.parts[i].count * 4);
    EXPECT_EQ(bf16.slots.parts[i].body_bytes(), bf16.shards.parts[i].count * 2);
  }
  EXPECT_LT(bf16.slots.window_bytes[0], fp32.slots.window_bytes[0]);
}

void expect_apart_and_aligned(PullFormat format) {
  for (const int64_t count : {1, 15, 16, 17, 31, 32, 33, 1000}) {
    const PartSlots part{.server_rank = 0, .offset = 128, .count = count, .slots = 3, .format = format};
    int64_t end = part.offset + static_cast<int64_t>(sizeof(int64_t));  // of `latest`
    for (int64_t version = 0; version < 3; ++version) {
      EXPECT_EQ(part.header_offset(version) % 64, 0);
      EXPECT_EQ(part.body_offset(version) % 64, 0);
      EXPECT_GE(part.header_offset(version), end);
      EXPECT_GE(part.body_offset(version), part.header_offset(version) + static_cast<int64_t>(sizeof(int64_t)));
      end = part.body_offset(version) + part.body_bytes();
      EXPECT_EQ(part.header_offset(version + 3), part.header_offset(version)) << "version v lies in slot v % slots";
    }
    EXPECT_LE(end, part.offset + part.size_bytes());
    EXPECT_EQ(part.size_bytes() % 64, 0);
  }
}

TEST(PartSlots, SlotsDoNotOverlapAndAreAligned) {
  expect_apart_and_aligned(PullFormat::fp32);
  expect_apart_and_aligned(PullFormat::bf16);
}

TEST(PartSlots, OffsetsGoBeyondTwoToThe31) {
  const PartSlots part{.server_rank = 0, .offset = 0, .count = int64_t{3} << 30, .slots = 3};
  EXPECT_EQ(part.slot_bytes(), (int64_t{12} << 30) + 64);
  EXPECT_EQ(part.body_offset(2), 64 + 2 * ((int64_t{12} << 30) + 64) + 64);
  EXPECT_EQ(part.size_bytes(), 64 + 3 * ((int64_t{12} << 30) + 64));
}

TEST(RunPlan, VersionsThatAStepMayUse) {
  RunPlan plan = make_run_plan(deck_of(2), roles_of(3, 1));
  const auto barrier = std::find(plan.is_barrier.begin(), plan.is_barrier.end(), true) - plan.is_barrier.begin();
  ASSERT_FALSE(plan.is_barrier[0]);
  EXPECT_EQ(plan.layout.blocks[static_cast<size_t>(barrier)].name, "layers.1.attention");
  EXPECT_EQ(plan.oldest_version(0, 7), 5);
  EXPECT_EQ(plan.oldest_version(barrier, 7), 7) << "barrier blocks are never late";
  EXPECT_EQ(plan.oldest_version(0, 1), 0);
  plan.first_step = 10;  // restored: older versions are gone
  EXPECT_EQ(plan.oldest_version(0, 10), 10);
  EXPECT_EQ(plan.oldest_version(0, 11), 10);
  EXPECT_EQ(plan.oldest_version(0, 13), 11);

  const RunPlan synchronous = make_run_plan(deck_of(0), roles_of(3, 1));
  EXPECT_EQ(synchronous.oldest_version(0, 7), 7);
  EXPECT_FALSE(synchronous.unbounded());
  EXPECT_FALSE(synchronous.pushes_single_units());
}

TEST(RunPlan, UnboundedTakesAnyVersion) {
  Deck deck = deck_of(kUnbounded);
  deck.barriers = {"none"};
  const RunPlan plan = make_run_plan(deck, roles_of(3, 1));
  EXPECT_TRUE(plan.unbounded());
  EXPECT_TRUE(plan.pushes_single_units());
  EXPECT_EQ(plan.oldest_version(0, 1000), 0);
  EXPECT_GE(plan.slot_count, 2) << "one is read while the next is written";
}

TEST(RunPlan, DeterministicPushesSingleUnits) {
  Deck deck = deck_of(0);
  deck.deterministic = true;
  EXPECT_TRUE(make_run_plan(deck, roles_of(3, 1)).pushes_single_units());
}

TEST(RunPlan, UnitTokensFollowBatchAndWorkersUnlessSet) {
  Deck deck = deck_of(1);
  deck.batch_tokens = 65536;
  EXPECT_EQ(make_run_plan(deck, roles_of(5, 1)).deck.unit_tokens, 4096);
  deck.batch_tokens = 1000;
  EXPECT_EQ(make_run_plan(deck, roles_of(5, 1)).deck.unit_tokens, 512) << "at least this";
  deck.unit_tokens = 77;
  EXPECT_EQ(make_run_plan(deck, roles_of(5, 1)).deck.unit_tokens, 77);
}

TEST(RunPlan, CheckpointsAreDueEveryAndAtTheEnd) {
  RunPlan plan;
  plan.deck.checkpoint.every = 10;
  plan.end_step = 25;
  std::vector<int64_t> due;
  for (int64_t steps = 1; steps <= 25; ++steps) {
    if (checkpoint_due(plan, steps)) due.push_back(steps);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{10, 20, 25}));
  plan.deck.checkpoint.every = 0;
  EXPECT_FALSE(checkpoint_due(plan, 10));
  EXPECT_TRUE(checkpoint_due(plan, 25));
}

// Under Muon this model has few places where it may be cut.
TEST(RunPlan, MoreServersThanTheModelCanFeedAreRefused) {
  Deck deck = deck_of(1);
  deck.optimizer.kind = OptimizerKind::muon;
  test::expect_input_error([&] { make_run_plan(deck, roles_of(201, 200)); },
                           {"servers: ", "200 servers are too many", "would own nothing"});
  Deck wrong = deck_of(1);
  wrong.barriers = {"uper"};
  test::expect_input_error([&] { make_run_plan(wrong, roles_of(3, 1)); }, {"barriers: ", "did you mean 'upper'?"});
  Deck noisy = deck_of(1);
  noisy.sensitivity.noise_block = "haed";
  test::expect_input_error([&] { make_run_plan(noisy, roles_of(3, 1)); },
                           {"sensitivity.noise_block: ", "'haed' is no block", "did you mean 'head'?"});
  noisy.sensitivity.noise_block = "layers.1.mlp";
  EXPECT_EQ(make_run_plan(noisy, roles_of(3, 1)).noise_block, 4);
}

}  // namespace
}  // namespace hat
