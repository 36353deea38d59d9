#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "model_support.hpp"
#include "server/clipping.hpp"

namespace hat {
namespace {

RunPlan plan_of(ClipRule rule, int servers, int64_t staleness, int64_t first_step = 0) {
  Deck deck;
  deck.model = test::small_llama();
  deck.staleness = staleness;
  deck.clip.rule = rule;
  deck.clip.norm = 2.0;
  const RolePlan roles = plan_roles(std::vector<int>(static_cast<size_t>(servers) + 1, 0), servers, Placement::packed);
  RunPlan plan = make_run_plan(deck, roles);
  plan.first_step = first_step;
  return plan;
}

/// Sum of squares that the test gives to each part.
double sum_of_squares(int64_t part, int64_t step) {
  return 1.0 + static_cast<double>(part) + 0.25 * static_cast<double>(step);
}

/// All servers of a run, their mail, and server 0's adding of whole norms (in the run the coordinator's job).
class Servers {
 public:
  explicit Servers(const RunPlan& plan, const std::vector<double>& recent_norms = {}) : plan_(plan) {
    for (int server = 0; server < plan.roles.servers(); ++server) {
      servers_.push_back(std::make_unique<Clipping>(
          plan, server, recent_norms, [this](const NormShare& share, int to) { mail_.emplace_back(share, to); }));
    }
  }

  Clipping& operator[](int server) { return *servers_[static_cast<size_t>(server)]; }

  void complete_part(int64_t part, int64_t step) {
    const int owner = plan_.shards.parts[static_cast<size_t>(part)].server;
    (*this)[owner].part_complete(part, step, sum_of_squares(part, step));
  }
  void complete_step(int64_t step) {
    const auto parts = static_cast<int64_t>(plan_.shards.parts.size());
    for (int64_t part = parts - 1; part >= 0; --part) complete_part(part, step);  // as the backward pass goes
  }
  /// Delivers everything posted; server 0 answers complete steps with their norm.
  void deliver() {
    while (!mail_.empty()) {
      const auto [share, to] = mail_.front();
      mail_.pop_front();
      if (share.block != NormShare::kAllBlocks) {
        (*this)[to].receive(share);
        continue;
      }
      EXPECT_EQ(to, 0);
      std::map<int64_t, double>& shares = whole_[share.step];
      EXPECT_TRUE(shares.emplace(share.server, share.sum_of_squares).second) << "one share of a server and step";
      if (shares.size() < servers_.size()) continue;
      double sum = 0;
      for (const auto& [server, value] : shares) sum += value;
      for (const auto& server : servers_) server->receive(NormTotal{.step = share.step, .norm = std::sqrt(sum)});
    }
  }

  /// The factor of a block on all its servers, which must agree to the bit.
  std::optional<double> factor(int64_t block, int64_t step) {
    std::vector<std::optional<double>> factors;
    for (const int64_t part : plan_.shards.parts_of_block[static_cast<size_t>(block)]) {
      factors.push_back((*this)[plan_.shards.parts[static_cast<size_t>(part)].server].factor(block, step));
    }
    for (const std::optional<double>& other : factors) EXPECT_EQ(other, factors.front());
    return factors.front();
  }

 private:
  const RunPlan& plan_;
  std::vector<std::unique_ptr<Clipping>> servers_;
  std::deque<std::pair<NormShare, int>> mail_;
  std::map<int64_t, std::map<int64_t, double>> whole_;
};

double whole_norm(const RunPlan& plan, int64_t step) {
  double sum = 0;
  for (size_t part = 0; part < plan.shards.parts.size(); ++part)
    sum += sum_of_squares(static_cast<int64_t>(part), step);
  return std::sqrt(sum);
}

int64_t blocks_of(const RunPlan& plan) { return static_cast<int64_t>(plan.layout.blocks.size()); }

/// A block that lies on more than one server.
int64_t split_block(const RunPlan& plan) {
  for (int64_t block = 0; block < blocks_of(plan); ++block) {
    if (plan.shards.parts_of_block[static_cast<size_t>(block)].size() > 1) return block;
  }
  ADD_FAILURE() << "no block is split: this test shows nothing";
  return 0;
}

TEST(Clipping, NoneNeedsNoNorm) {
  const RunPlan plan = plan_of(ClipRule::none, 3, 0);
  Servers servers(plan);
  for (int64_t block = 0; block < blocks_of(plan); ++block) EXPECT_EQ(servers.factor(block, 0), 1.0);
}

TEST(Clipping, GlobalWaitsForTheWholeStep) {
  for (const int count : {1, 3}) {
    const RunPlan plan = plan_of(ClipRule::global, count, 0);
    Servers servers(plan);
    const auto parts = static_cast<int64_t>(plan.shards.parts.size());
    for (int64_t part = parts - 1; part > 0; --part) servers.complete_part(part, 0);
    servers.deliver();
    for (int64_t block = 0; block < blocks_of(plan); ++block) EXPECT_FALSE(servers.factor(block, 0).has_value());
    servers.complete_part(0, 0);
    servers.deliver();
    for (int64_t block = 0; block < blocks_of(plan); ++block) {
      const std::optional<double> factor = servers.factor(block, 0);
      ASSERT_TRUE(factor.has_value());
      EXPECT_NEAR(*factor, 2.0 / whole_norm(plan, 0), 1e-14);
      EXPECT_FALSE(servers.factor(block, 1).has_value()) << "of another step";
    }
  }
}

// Two steps in flight, their parts completing in turn, keep their sums apart.
TEST(Clipping, StepsInFlightAreKeptApart) {
  const RunPlan plan = plan_of(ClipRule::global, 2, 1);
  Servers servers(plan);
  const auto parts = static_cast<int64_t>(plan.shards.parts.size());
  for (int64_t part = parts - 1; part >= 0; --part) {
    if (part < parts - 1) servers.complete_part(part + 1, 1);
    servers.complete_part(part, 0);
  }
  servers.complete_part(0, 1);
  servers.deliver();
  EXPECT_NEAR(servers.factor(0, 0).value(), 2.0 / whole_norm(plan, 0), 1e-14);
  EXPECT_NEAR(servers.factor(0, 1).value(), 2.0 / whole_norm(plan, 1), 1e-14);
}

TEST(Clipping, SmallNormsAreLeftAlone) {
  const RunPlan plan = plan_of(ClipRule::global, 1, 0);
  Servers servers(plan);
  for (const auto& [norm, expected] : {std::pair{0.5, 1.0}, {2.0, 1.0}, {4.0, 0.5}, {0.0, 1.0}}) {
    servers[0].receive(NormTotal{.step = 3, .norm = norm});
    EXPECT_EQ(servers.factor(0, 3), expected);
  }
}

TEST(Clipping, BlockNormsComeFromAllServersOfTheBlock) {
  for (const int count : {2, 3}) {
    const RunPlan plan = plan_of(ClipRule::block, count, 0);
    Servers servers(plan);
    const int64_t split = split_block(plan);
    const std::vector<int64_t>& parts = plan.shards.parts_of_block[static_cast<size_t>(split)];
    for (size_t i = 0; i + 1 < parts.size(); ++i) servers.complete_part(parts[i], 0);
    servers.deliver();
    EXPECT_FALSE(servers.factor(split, 0).has_value());
    servers.complete_part(parts.back(), 0);
    servers.deliver();
    double sum = 0;
    for (const int64_t part : parts) sum += sum_of_squares(part, 0);
    ASSERT_TRUE(servers.factor(split, 0).has_value());
    EXPECT_NEAR(*servers.factor(split, 0), std::min(1.0, 2.0 / std::sqrt(sum)), 1e-14);
    for (int64_t block = 0; block < blocks_of(plan); ++block) {
      if (block != split) {
        EXPECT_FALSE(servers.factor(block, 0).has_value()) << "nothing of this block is in";
      }
    }
  }
}

TEST(Clipping, PreviousTakesTheNormThatIsSureToBeIn) {
  for (const int64_t staleness : {0, 1, 2}) {
    const RunPlan plan = plan_of(ClipRule::previous, 2, staleness);
    Servers servers(plan);
    for (int64_t step = 0; step < 8; ++step) {
      const int64_t source = step - 1 - staleness;
      // At the start of a run no such step exists: the step's own norm, once it is whole.
      EXPECT_EQ(servers.factor(0, step).has_value(), source >= 0) << "step " << step;
      servers.complete_step(step);
      servers.deliver();
      const double norm = whole_norm(plan, source >= 0 ? source : step);
      for (int64_t block = 0; block < blocks_of(plan); ++block) {
        ASSERT_TRUE(servers.factor(block, step).has_value());
        EXPECT_NEAR(*servers.factor(block, step), 2.0 / norm, 1e-14);
      }
      for (int server = 0; server < 2; ++server) servers[server].forget_before(step + 1);
    }
  }
}

// After a restore the norms of the steps before come from the checkpoint, and clip as in the uninterrupted run.
TEST(Clipping, PreviousGoesOnAfterARestore) {
  constexpr int64_t kFirst = 10;
  const RunPlan plan = plan_of(ClipRule::previous, 2, 1, kFirst);
  Servers restored(plan, {40.0, 80.0});  // of steps 8 and 9
  EXPECT_EQ(restored.factor(0, 10), 2.0 / 40.0);
  EXPECT_EQ(restored.factor(0, 11), 2.0 / 80.0);
  EXPECT_FALSE(restored.factor(0, 12).has_value());
  restored.complete_step(10);
  restored.deliver();
  EXPECT_NEAR(restored.factor(0, 12).value(), 2.0 / whole_norm(plan, 10), 1e-14);
}

// A checkpoint of the first step has fewer norms than the staleness asks for.
TEST(Clipping, PreviousWithFewRecentNorms) {
  const RunPlan plan = plan_of(ClipRule::previous, 1, 2, 1);
  Servers restored(plan, {40.0});  // of step 0
  for (const int64_t step : {1, 2}) {
    EXPECT_FALSE(restored.factor(0, step).has_value()) << "its own norm, which is not in";
    restored.complete_step(step);
    restored.deliver();
    EXPECT_NEAR(restored.factor(0, step).value(), 2.0 / whole_norm(plan, step), 1e-14);
  }
  EXPECT_EQ(restored.factor(0, 3), 2.0 / 40.0);
}

TEST(Clipping, ForgetsOnlyWhatNobodyNeeds) {
  const RunPlan plan = plan_of(ClipRule::block, 2, 1);
  Servers servers(plan);
  servers.complete_step(4);
  servers.complete_step(5);
  servers.deliver();
  for (int server = 0; server < 2; ++server) servers[server].forget_before(5);
  EXPECT_FALSE(servers.factor(0, 4).has_value());
  EXPECT_TRUE(servers.factor(0, 5).has_value());
}

}  // namespace
}  // namespace hat
