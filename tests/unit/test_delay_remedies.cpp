// Remedies for delay: which version a step takes, where predictions lie, what compensation and the momentum rule
// compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "commands/memory_plan.hpp"
#include "hat/gradient/barrier_schedule.hpp"
#include "hat/optimizer/optimizer.hpp"
#include "model_support.hpp"
#include "server/delay_remedies.hpp"

namespace hat {
namespace {

Deck deck_of(int64_t staleness, int64_t sync_steps, bool predict) {
  Deck deck;
  deck.model = test::small_llama();
  deck.staleness = staleness;
  deck.barriers = {"upper"};
  deck.delay = {.predict = predict, .sync_steps = sync_steps};
  return deck;
}

RunPlan plan_of(const Deck& deck, int servers = 1) {
  return make_run_plan(deck,
                       plan_roles(std::vector<int>(static_cast<size_t>(servers) + 2, 0), servers, Placement::packed));
}

std::vector<int64_t> versions_of(const RunPlan& plan, int64_t steps) {
  std::vector<int64_t> versions;
  for (int64_t step = plan.first_step; step < steps; ++step) versions.push_back(plan.oldest_version(0, step));
  return versions;
}

TEST(SyncSteps, NothingIsLateInThemAndNoVersionIsOlderThanTheirLast) {
  EXPECT_EQ(versions_of(plan_of(deck_of(1, 3, false)), 7), (std::vector<int64_t>{0, 1, 2, 2, 3, 4, 5}));
  EXPECT_EQ(versions_of(plan_of(deck_of(2, 3, false)), 7), (std::vector<int64_t>{0, 1, 2, 2, 2, 3, 4}));
  EXPECT_EQ(versions_of(plan_of(deck_of(2, 0, false)), 5), (std::vector<int64_t>{0, 0, 0, 1, 2}));
  RunPlan resumed = plan_of(deck_of(2, 3, false));
  resumed.first_step = 2;  // they are counted from the beginning of training
  EXPECT_EQ(versions_of(resumed, 7), (std::vector<int64_t>{2, 2, 2, 3, 4}));
  resumed.first_step = 5;
  EXPECT_EQ(versions_of(resumed, 9), (std::vector<int64_t>{5, 5, 5, 6}));
}

TEST(Prediction, IsForLateBlocksOnly) {
  const RunPlan plan = plan_of(deck_of(1, 3, true));
  const auto barrier = std::find(plan.is_barrier.begin(), plan.is_barrier.end(), true) - plan.is_barrier.begin();
  for (int64_t step = 0; step < 8; ++step) {
    EXPECT_EQ(BarrierSchedule(plan).is_predicted(0, step), step >= 3) << step;
    EXPECT_FALSE(BarrierSchedule(plan).is_predicted(barrier, step));
  }
  const RunPlan without = plan_of(deck_of(1, 0, false));
  EXPECT_FALSE(BarrierSchedule(without).is_predicted(0, 5));
}

TEST(Prediction, SlotsLieBehindAllOthersAndAreCounted) {
  for (const int servers : {1, 3}) {
    for (const PullFormat format : {PullFormat::fp32, PullFormat::bf16}) {
      Deck deck = deck_of(2, 0, true);
      deck.pull_format = format;
      const RunPlan plan = plan_of(deck, servers);
      deck.delay.predict = false;
      const RunPlan plain = plan_of(deck, servers);
      std::vector<int64_t> end = plain.slots.window_bytes;
      int64_t late_bytes = 0;
      ASSERT_EQ(plan.predicted_slots.size(), plan.shards.parts.size());
      for (size_t p = 0; p < plan.shards.parts.size(); ++p) {
        const Part& part = plan.shards.parts[p];
        const PartSlots& slots = plan.predicted_slots[p];
        const bool late = !plan.is_barrier[static_cast<size_t>(part.block)];
        EXPECT_EQ(slots.slots, late ? plan.slot_count : 0);
        if (!late) continue;
        EXPECT_EQ(slots.server_rank, plan.slots.parts[p].server_rank);
        EXPECT_EQ(slots.count, part.count);
        EXPECT_EQ(slots.format, format);
        EXPECT_EQ(slots.offset, end[static_cast<size_t>(part.server)]);
        end[static_cast<size_t>(part.server)] += slots.size_bytes();
        late_bytes += slots.size_bytes() + (format == PullFormat::bf16 ? part.count * 4 : 0);
      }
      EXPECT_EQ(plan.slots.window_bytes, end);
      int64_t more = 0;
      for (int server = 0; server < servers; ++server) {
        more += server_memory(plan, server).total() - server_memory(plain, server).total();
      }
      EXPECT_EQ(more, late_bytes);
    }
  }
}

TEST(Compensation, IsItsFormula) {
  const std::vector<float> gradient{3.0F, -4.0F, 0.0F, 12.0F};  // root mean square 6.5
  const std::vector<float> values{1.0F, 2.0F, 3.0F, 4.0F};
  const std::vector<float> base{0.5F, 2.5F, 0.0F, 4.0F};
  std::vector<float> compensated(4);
  compensate(2.0, gradient, values, base, compensated);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    EXPECT_NEAR(compensated[i], g + 2.0 * g * g / 6.5 * (values[i] - base[i]), 1e-5) << i;
  }
  // The sum of a step may stand for its clipped mean: a scaled gradient gives the scaled result.
  std::vector<float> eighth = gradient;
  for (float& g : eighth) g /= 8;
  std::vector<float> of_eighth(4);
  compensate(2.0, eighth, values, base, of_eighth);
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_FLOAT_EQ(of_eighth[i], compensated[i] / 8);
  // And without a gradient nothing is added, not a number either.
  const std::vector<float> zeros(4, 0.0F);
  compensate(2.0, zeros, values, base, compensated);
  EXPECT_EQ(compensated, zeros);
}

// On a quadratic whose curvature is the square of the gradient over its size, compensation removes delay exactly: with
// f' = g(w) and g(w) = g(b) + h (w - b), h = g(b) g(b) / |g(b)|.
TEST(Compensation, MovesAGradientToTheNewestWeights) {
  const std::vector<float> gradient{-3.0F};
  const std::vector<float> values{0.25F};
  const std::vector<float> base{0.5F};
  std::vector<float> compensated(1);
  compensate(1.0, gradient, values, base, compensated);
  EXPECT_FLOAT_EQ(compensated[0], -3.0F + 3.0F * (0.25F - 0.5F));
}

constexpr LearningRates kRates{.base = 3e-3, .muon = 0.02};

OptimizerConfig by_staleness(OptimizerKind kind) {
  OptimizerConfig config;
  config.kind = kind;
  config.momentum_rule = MomentumRule::staleness;
  return config;
}

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_normal(17, stream, i));
  return values;
}

/// A whole block after updates whose gradients are `staleness` versions old.
struct Updated {
  Updated(const OptimizerConfig& config, const std::vector<double>& staleness)
      : layout(make_layout(test::small_gpt2())),
        part{.block = 1, .begin = 0, .count = layout.blocks[1].size, .server = 0},
        optimizer(config, layout, part),
        values(random_values(part.count, 1000)) {
    for (size_t u = 0; u < staleness.size(); ++u) update(static_cast<int64_t>(u), staleness[u]);
  }
  void update(int64_t updates, double staleness) {
    const std::vector<float> gradient = random_values(part.count, static_cast<uint64_t>(updates));
    for (int64_t piece = 0; piece < optimizer.pieces(); ++piece) {
      optimizer.update(piece, updates, kRates, 1.0, gradient.data(), values.data(), values.data(), staleness);
    }
  }
  ModelLayout layout;
  Part part;
  Optimizer optimizer;
  std::vector<float> values;
};

TEST(MomentumRule, AdamwIsItsFormulaAtAnyStaleness) {
  const std::vector<double> staleness{0, 0, 1, 1, 2.5, 0, 4, 1};
  const OptimizerConfig config = by_staleness(OptimizerKind::adamw);
  const Updated updated(config, staleness);
  const std::vector<float> start = random_values(updated.part.count, 1000);
  for (const TensorSpec& tensor : updated.layout.blocks[1].tensors) {
    for (auto i = static_cast<size_t>(tensor.offset); i < static_cast<size_t>(tensor.offset + tensor.size()); ++i) {
      double w = start[i];
      double m = 0;
      double v = 0;
      double left_of_m = 1;
      for (size_t t = 0; t < staleness.size(); ++t) {
        const double g = random_values(static_cast<int64_t>(i) + 1, t).back();
        const double b1 = std::pow(config.beta1, 1 + staleness[t]);
        left_of_m *= b1;
        m = b1 * m + (1 - b1) * g;
        v = config.beta2 * v + (1 - config.beta2) * g * g;
        const double v_hat = v / (1 - std::pow(config.beta2, static_cast<double>(t + 1)));
        const double decay = tensor.decay ? kRates.base * config.weight_decay * w : 0.0;
        w -= kRates.base * m / (1 - left_of_m) / (std::sqrt(v_hat) + config.epsilon) + decay;
      }
      ASSERT_NEAR(updated.values[i], w, 3e-6) << tensor.name << " " << i;
      i += 6;  // a few of each tensor
    }
  }
}

TEST(MomentumRule, WithoutDelayItIsTheFixedRule) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    OptimizerConfig config = by_staleness(kind);
    const Updated timely(config, {0, 0, 0, 0, 0});
    const Updated late(config, {1, 1, 1, 1, 1});
    config.momentum_rule = MomentumRule::fixed;
    const Updated fixed(config, {1, 1, 1, 1, 1});
    config.beta1 *= config.beta1;
    config.momentum *= config.momentum;
    const Updated squared(config, {0, 0, 0, 0, 0});
    double largest = 0;
    for (size_t i = 0; i < fixed.values.size(); ++i) {
      ASSERT_NEAR(timely.values[i], fixed.values[i], 1e-6);
      ASSERT_NEAR(late.values[i], squared.values[i], 2e-6) << "one version late: the square of the momentum";
      largest = std::max<double>(largest, std::abs(late.values[i] - timely.values[i]));
    }
    EXPECT_GT(largest, 1e-3) << "staleness must show";
  }
}

// What a checkpoint holds, also where another number of servers cuts the rows elsewhere.
TEST(MomentumRule, StateIsWholeAndIsCutByRows) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
    const OptimizerConfig config = by_staleness(kind);
    Updated whole(config, {0, 1, 1, 3});
    const Updated before(config, {0, 1, 1});
    Updated restored(config, {});
    restored.values = before.values;
    for (int64_t piece = 0; piece < restored.optimizer.pieces(); ++piece) {
      Optimizer saved = before.optimizer;
      restored.optimizer.state(piece) = saved.state(piece);
      const auto& place = restored.optimizer.piece(piece);
      const TensorSpec& tensor = restored.layout.blocks[1].tensors[static_cast<size_t>(place.tensor)];
      const std::vector<std::string> names = row_state_names(config, tensor);
      EXPECT_EQ(names.empty(), kind == OptimizerKind::muon && tensor.orthogonal) << tensor.name;
      if (names.empty()) continue;
      EXPECT_EQ(restored.optimizer.state(piece).back().name, names.front());
      EXPECT_EQ(restored.optimizer.state(piece).back().values.size(), static_cast<size_t>(place.rows));
    }
    restored.update(3, 3);
    EXPECT_EQ(restored.values, whole.values);
  }
  EXPECT_TRUE(row_state_names(OptimizerConfig{}, TensorSpec{}).empty());
}

}  // namespace
}  // namespace hat
