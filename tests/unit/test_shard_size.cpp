#include <gtest/gtest.h>

#include "hat/gradient/shard_size.hpp"

namespace hat {
namespace {

// min(length, max(512, int(max_delay * FLOPS / 8))), by hand.
TEST(ShardSize, ArticleRuleAsPrinted) {
  EXPECT_EQ(article_shard_tokens(100000, 0.5, 1e12), 100000);  // 6.25e10 tokens: never cut on a device of today
  EXPECT_EQ(article_shard_tokens(100000, 0.5, 160000), 10000);
  EXPECT_EQ(article_shard_tokens(100000, 0.5, 160015), 10000);  // 10000.9375, truncated
  EXPECT_EQ(article_shard_tokens(100000, 0.5, 160016), 10001);
  EXPECT_EQ(article_shard_tokens(100000, 0.5, 8191), 512);  // 511.9: at least 512
  EXPECT_EQ(article_shard_tokens(511, 0.5, 1), 511);        // unless the sequence is shorter
  EXPECT_EQ(article_shard_tokens(1000000, 1e6, 1e18), 1000000);
}

// 1000 n + n^2 FLOP: 5000 tokens cost 3.0e7, 5001 a little more.
TEST(ShardSize, DelayRuleTakesTheMostTokensThatFit) {
  const auto flop = [](int64_t n) { return 1000.0 * static_cast<double>(n) + static_cast<double>(n * n); };
  EXPECT_EQ(delay_shard_tokens(100000, 0.5, 6e7, flop), 5000);
  EXPECT_EQ(delay_shard_tokens(100000, 0.5, 6e7 - 1, flop), 4999);
  EXPECT_EQ(delay_shard_tokens(4000, 0.5, 6e7, flop), 4000);
  EXPECT_EQ(delay_shard_tokens(100000, 0.5, 1, flop), 512);
  EXPECT_EQ(delay_shard_tokens(300, 0.5, 1, flop), 300);
}

Deck small_deck() {
  Deck deck;
  deck.model.vocabulary = 257;
  deck.model.max_length = 8192;
  return deck;
}

TEST(ShardSize, ExactNeverCutsBelowMaxLength) { EXPECT_EQ(piece_tokens(small_deck()), 8192); }

TEST(ShardSize, IndependentPiecesFollowTheRule) {
  Deck deck = small_deck();
  deck.cutting.split = SplitRule::independent;
  deck.cutting.shard_rule = ShardRule::article;
  deck.cutting.shard_flops = 16000;
  EXPECT_EQ(piece_tokens(deck), 1000);  // 0.5 s * 16000 / 8
  deck.cutting.shard_rule = ShardRule::delay;
  EXPECT_EQ(piece_tokens(deck), 512);
  deck.cutting.shard_flops = 1e12;
  EXPECT_EQ(piece_tokens(deck), 8192);
  // A real token stands for 16 charged ones: pieces have at least 512 / 16.
  deck.emulation.length_scale = 16;
  deck.cutting.shard_flops = 16000;
  EXPECT_EQ(piece_tokens(deck), 32);
  deck.cutting.shard_rule = ShardRule::article;
  EXPECT_EQ(piece_tokens(deck), 62);  // 1000 / 16
}

}  // namespace
}  // namespace hat
