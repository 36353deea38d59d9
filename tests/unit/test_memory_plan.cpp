// What a run needs of memory, what it may have, and what is chosen from it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "commands/compute_choice.hpp"
#include "commands/machine.hpp"
#include "commands/memory_plan.hpp"
#include "hat/core/error.hpp"

namespace hat::test {
namespace {

namespace fs = std::filesystem;

RunPlan plan_of(const std::vector<int>& node_of_rank, int64_t servers, Placement placement = Placement::spread) {
  Deck deck;
  deck.mode = Mode::sync;
  deck.staleness = 0;
  deck.barriers = {"none"};
  deck.servers = servers;
  deck.model.vocabulary = 257;
  deck.unit_tokens = 2048;
  deck.gang.policy = SplitPolicy::never;
  return make_run_plan(deck, plan_roles(node_of_rank, servers, placement));
}

constexpr UnitSizes kUnits{.tokens = 2048, .longest = 1024};

TEST(Recomputation, IsTheFirstThatFits) {
  const auto bytes = [](Recompute level) {
    return level == Recompute::none ? 30 : level == Recompute::inner ? 20 : 10;
  };
  EXPECT_EQ(first_that_fits(Recompute::automatic, bytes, 30), Recompute::none);
  EXPECT_EQ(first_that_fits(Recompute::automatic, bytes, 29), Recompute::inner);
  EXPECT_EQ(first_that_fits(Recompute::automatic, bytes, 10), Recompute::full);
  EXPECT_EQ(first_that_fits(Recompute::automatic, bytes, 9), std::nullopt);
  EXPECT_EQ(first_that_fits(Recompute::inner, bytes, 29), Recompute::inner);
  EXPECT_EQ(first_that_fits(Recompute::inner, bytes, 19), std::nullopt);
}

TEST(Precision, IsTheFaster) {
  EXPECT_EQ(faster_of({.fp32_s = 2.0, .bf16_s = 1.0}), Element::bf16);
  EXPECT_EQ(faster_of({.fp32_s = 1.0, .bf16_s = 2.0}), Element::fp32);
}

TEST(MemoryPlan, RecomputesAsTheLimitFalls) {
  RunPlan plan = plan_of({0, 0, 0}, 1);
  const int64_t none = worker_memory(plan, kUnits, Recompute::none).total();
  const int64_t full = worker_memory(plan, kUnits, Recompute::full).total();
  ASSERT_LT(full, none);
  EXPECT_EQ(choose_by_memory(plan, kUnits, none).recompute, Recompute::none);
  EXPECT_EQ(choose_by_memory(plan, kUnits, none - 1).recompute, Recompute::inner);
  EXPECT_EQ(choose_by_memory(plan, kUnits, full).recompute, Recompute::full);
  EXPECT_THROW(choose_by_memory(plan, kUnits, full - 1), InputError);
}

// What no worker can hold is computed by several; only then, and by as few as can.
TEST(MemoryPlan, SeveralWorkersHoldWhatOneCannot) {
  RunPlan plan = plan_of({0, 0, 0, 0, 0}, 1);  // four workers
  plan.deck.model.kv_heads = 1;                // keys and values of others must be less than what a range saves
  plan.deck.unit_tokens = 256;
  constexpr UnitSizes kLong{.tokens = 8192, .longest = 8192};
  const int64_t alone = worker_memory(plan, kLong, Recompute::full).total();
  EXPECT_THROW(choose_by_memory(plan, kLong, alone - 1), InputError);
  plan.deck.gang.policy = SplitPolicy::automatic;
  const MemoryChoice roomy = choose_by_memory(plan, kLong, int64_t{1} << 40);
  EXPECT_EQ(roomy.units.least_gang, 0);
  EXPECT_EQ(roomy.recompute, Recompute::none);
  EXPECT_TRUE(roomy.gangs);
  int64_t members = 1;
  for (const int64_t limit : {alone * 95 / 100, alone * 80 / 100}) {
    const MemoryChoice choice = choose_by_memory(plan, kLong, limit);
    EXPECT_GT(choice.units.least_gang, 1) << limit;
    EXPECT_GE(choice.units.least_gang, members) << limit;
    members = choice.units.least_gang;
    EXPECT_LT(choice.units.tokens, 8192) << limit;
    EXPECT_GE(choice.units.tokens, plan.deck.unit_tokens) << limit;
    EXPECT_LE(worker_memory(plan, choice.units, choice.recompute).total(), limit);
    UnitSizes more = choice.units;
    ++more.tokens;
    EXPECT_GT(worker_memory(plan, more, choice.recompute).total(), limit);
  }
  EXPECT_THROW(choose_by_memory(plan, kLong, alone / 100), InputError);
}

std::string refusal(const RunPlan& plan, int64_t share) {
  try {
    choose_by_memory(plan, kUnits, share);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(MemoryPlan, NamesTheLimitThatWasMet) {
  RunPlan plan = plan_of({0, 0, 0}, 1);
  const int64_t plenty = int64_t{1} << 40;
  plan.deck.worker.memory_gib = 1e-4;
  EXPECT_NE(refusal(plan, plenty).find("worker.memory_gib"), std::string::npos) << refusal(plan, plenty);
  plan.deck.worker.memory_gib = 1000;
  EXPECT_EQ(refusal(plan, 1000).find("worker.memory_gib"), std::string::npos) << refusal(plan, 1000);
  EXPECT_NE(refusal(plan, 1000).find("share"), std::string::npos) << refusal(plan, 1000);
}

// Whoever gives as much memory as the message says is needed is refused no more; nor is who follows a limit's text.
TEST(MemoryPlan, AsMuchAsIsSaidToBeNeededIsEnough) {
  for (const SplitPolicy policy : {SplitPolicy::never, SplitPolicy::automatic, SplitPolicy::always}) {
    for (int64_t width = 48; width <= 480; width += 48) {
      RunPlan plan = plan_of({0, 0, 0}, 1);
      plan.deck.gang.policy = policy;
      plan.deck.model.heads = 4;
      plan.deck.model.kv_heads = 4;
      plan.deck.model.width = width;
      plan = make_run_plan(plan.deck, plan.roles);
      plan.deck.worker.memory_gib = 1e-6;
      const std::string text = refusal(plan, int64_t{1} << 40);
      const std::string words = "a worker needs ";
      const size_t at = text.find(words);
      ASSERT_NE(at, std::string::npos) << text;
      plan.deck.worker.memory_gib = std::stod(text.substr(at + words.size()));
      EXPECT_EQ(refusal(plan, int64_t{1} << 40), "nothing was refused") << text;
    }
  }
}

TEST(Gib, NeedsAreRoundedUpAndLimitsDown) {
  constexpr double kGib = 1 << 30;
  for (int64_t bytes = 1; bytes < int64_t{1} << 50; bytes = bytes * 17 / 10 + 1) {
    const double up = std::stod(gib(bytes)) * kGib;
    const double down = std::stod(gib(bytes, Rounding::down)) * kGib;
    const auto value = static_cast<double>(bytes);
    EXPECT_GE(up, value * (1 - 1e-12)) << bytes;
    EXPECT_LE(up, value * 1.0101) << bytes;
    EXPECT_LE(down, value * (1 + 1e-12)) << bytes;
    EXPECT_GE(down, value / 1.0101) << bytes;
  }
  EXPECT_EQ(gib(int64_t{5} << 28), "1.25 GiB");
  EXPECT_EQ(gib(0), "0 GiB");
}

TEST(MemoryPlan, SharesANodeAmongItsWorkers) {
  // Two ranks a node; the server is on the first.
  const std::vector<int> nodes{0, 0, 1, 1};
  const RunPlan plan = plan_of(nodes, 1);
  const int64_t server = server_memory(plan, 0).total();
  constexpr int64_t kAvailable = int64_t{1} << 30;
  EXPECT_EQ(worker_share(plan, nodes, 0, kAvailable), kAvailable - server);
  EXPECT_EQ(worker_share(plan, nodes, 1, kAvailable), kAvailable / 2);
  EXPECT_THROW(worker_share(plan, nodes, 0, server - 1), InputError);
  EXPECT_EQ(worker_share(plan, nodes, 1, 0), std::numeric_limits<int64_t>::max());  // nobody knows
}

// With single-unit pushes in unit order the last ones of a step may come first, and wait.
TEST(MemoryPlan, CountsPushesThatWaitForTheirTurn) {
  RunPlan plan = plan_of({0, 0, 0}, 1);  // one server, two workers
  plan.deck.batch_tokens = 4 * plan.deck.unit_tokens;
  const int64_t at_once = server_memory(plan, 0).gradients;
  plan.deck.deterministic = true;
  const int64_t parameters = plan.layout.size() * static_cast<int64_t>(sizeof(float));
  EXPECT_EQ(server_memory(plan, 0).gradients - at_once, (4 + 2 - 1) * parameters);
  plan.is_barrier.assign(plan.is_barrier.size(), true);  // sums of rings come whole
  EXPECT_EQ(server_memory(plan, 0).gradients, at_once);
}

TEST(MemoryPlan, ANodeWithoutWorkersLimitsNobody) {
  const std::vector<int> nodes{0, 1, 1};
  const RunPlan plan = plan_of(nodes, 1, Placement::dedicated);
  const int node = nodes[static_cast<size_t>(plan.roles.rank_of_server.front())];
  ASSERT_EQ(node, 0);
  EXPECT_EQ(worker_share(plan, nodes, node, int64_t{1} << 30), std::numeric_limits<int64_t>::max());
}

/// A made-up /proc/self/cgroup and /sys/fs/cgroup.
class Groups : public testing::Test {
 protected:
  Groups() : root_(fs::temp_directory_path() / ("hat-groups-" + std::to_string(getpid()))) {
    fs::create_directories(root_);
  }
  ~Groups() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::optional<int64_t> left() const { return memory_left_by_groups(root_ / "membership", root_ / "groups"); }
  fs::path root_;
};

TEST_F(Groups, NoneIsNoLimit) {
  EXPECT_EQ(left(), std::nullopt);
  write("membership", "0::/\n");
  EXPECT_EQ(left(), std::nullopt);
  write("groups/memory.max", "max\n");
  write("groups/memory.current", "5\n");
  EXPECT_EQ(left(), std::nullopt);
}

TEST_F(Groups, TheTightestCountsAndFileCacheIsFree) {
  write("membership", "0::/job/step\n");
  write("groups/job/memory.max", "1000\n");
  write("groups/job/memory.current", "700\n");
  write("groups/job/memory.stat", "anon 600\ninactive_file 50\n");
  write("groups/job/step/memory.max", "900\n");
  write("groups/job/step/memory.current", "100\n");
  EXPECT_EQ(left(), 350);
  write("groups/job/step/memory.current", "950\n");
  EXPECT_EQ(left(), 0);
}

TEST_F(Groups, ThoseOfTheFirstVersion) {
  write("membership", "5:cpu,cpuacct:/other\n4:memory:/slurm/job\n");
  write("groups/memory/slurm/job/memory.limit_in_bytes", "1000\n");
  write("groups/memory/slurm/job/memory.usage_in_bytes", "300\n");
  write("groups/memory/slurm/memory.limit_in_bytes", "9223372036854771712\n");
  write("groups/memory/slurm/memory.usage_in_bytes", "300\n");
  EXPECT_EQ(left(), 700);
}

}  // namespace
}  // namespace hat::test
