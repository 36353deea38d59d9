#include <gtest/gtest.h>

#include "hat/model/charged_cost.hpp"
#include "hat/model/layout.hpp"
#include "hat/model/transformer.hpp"

namespace hat {
namespace {

Deck small_deck() {
  Deck deck;
  deck.model = {.width = 32, .layers = 3, .heads = 2, .vocabulary = 257};
  return deck;
}

double as_double(int64_t value) { return static_cast<double>(value); }

TEST(ChargedCost, IsTheOwnModelsUnlessTold) {
  const Deck deck = small_deck();
  const ChargedCost cost(deck);
  const Transformer model(deck.model);
  for (const int64_t length : {0, 1, 100, 5000}) EXPECT_DOUBLE_EQ(cost.flop(length), model.flop(length)) << length;
  EXPECT_EQ(cost.bytes_per_byte(), 1.0);
}

// 12 layers of 768 with 4 * 768 in the MLP, from the shapes alone.
TEST(ChargedCost, Gpt2HasItsPublishedSize) {
  Deck deck = small_deck();
  deck.emulation.cost_of = CostModel::gpt2_124m;
  const ChargedCost cost(deck);
  constexpr double kParameters = 124439808;  // as published, positions included
  constexpr double kPositions = 1024 * 768;
  EXPECT_EQ(cost.total().per_token, 6 * (kParameters - kPositions));
  EXPECT_EQ(cost.total().per_square, 6.0 * 768 * 12);
  EXPECT_DOUBLE_EQ(cost.bytes_per_byte(), kParameters / as_double(make_layout(deck.model).size()));
}

TEST(ChargedCost, Llama1bHasItsPublishedSize) {
  Deck deck = small_deck();
  deck.emulation.cost_of = CostModel::llama_1b;
  EXPECT_DOUBLE_EQ(ChargedCost(deck).bytes_per_byte(), 1235814400 / as_double(make_layout(deck.model).size()));
}

TEST(ChargedCost, LengthsAreScaledBeforeTheyAreSquared) {
  Deck deck = small_deck();
  deck.emulation.cost_of = CostModel::gpt2_124m;
  const ChargedCost plain(deck);
  deck.emulation.length_scale = 16;
  const ChargedCost scaled(deck);
  for (const int64_t length : {1, 30, 512}) EXPECT_DOUBLE_EQ(scaled.flop(length), plain.flop(16 * length)) << length;
  EXPECT_EQ(scaled.bytes_per_byte(), plain.bytes_per_byte());
}

TEST(ChargedCost, RangesAddUpToTheirDocument) {
  Deck deck = small_deck();
  deck.emulation.length_scale = 16;
  const ChargedCost cost(deck);
  EXPECT_DOUBLE_EQ(cost.flop(0, 30) + cost.flop(30, 31) + cost.flop(31, 100), cost.flop(100));
  EXPECT_GT(cost.flop(50, 100), cost.flop(0, 50));
}

TEST(ChargedCost, BlocksAddUpToTheWhole) {
  Deck deck = small_deck();
  for (const CostModel model : {CostModel::own, CostModel::gpt2_124m, CostModel::llama_1b}) {
    deck.emulation.cost_of = model;
    const ChargedCost cost(deck);
    ASSERT_EQ(cost.blocks().size(), make_layout(deck.model).blocks.size());
    double shares = 0;
    for (const BlockFlop& block : cost.blocks()) shares += block.of(40, 1600) / cost.flop(40);
    EXPECT_NEAR(shares, 1.0, 1e-12);
    EXPECT_EQ(cost.blocks().front().of(40, 1600), 0.0);  // embedding
    EXPECT_GT(cost.blocks()[1].per_square, 0.0);         // attention
    EXPECT_EQ(cost.blocks()[2].per_square, 0.0);         // MLP
    EXPECT_EQ(cost.blocks()[2].per_token, cost.blocks()[4].per_token);
  }
}

}  // namespace
}  // namespace hat
