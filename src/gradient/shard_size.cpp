#include "hat/gradient/shard_size.hpp"

#include <algorithm>
#include <limits>

#include "hat/model/transformer.hpp"

namespace hat {

int64_t article_shard_tokens(int64_t length, double max_delay_s, double flops) {
  constexpr double kFlopOfToken = 8;
  constexpr double kMost = 9e18;  // of a 64-bit integer
  const auto tokens = static_cast<int64_t>(std::min(kMost, max_delay_s * flops / kFlopOfToken));
  return std::min(length, std::max(kFewestShardTokens, tokens));
}

int64_t delay_shard_tokens(int64_t length, double max_delay_s, double flops,
                           const std::function<double(int64_t)>& flop_of_length) {
  const double budget = max_delay_s * flops;
  int64_t most = std::min(length, kFewestShardTokens);
  int64_t too_many = length + 1;
  while (too_many - most > 1) {
    const int64_t middle = most + (too_many - most) / 2;
    (flop_of_length(middle) <= budget ? most : too_many) = middle;
  }
  return most;
}

int64_t piece_tokens(const Deck& deck) {
  const CuttingConfig& cutting = deck.cutting;
  const int64_t longest = deck.model.max_length;
  if (cutting.split == SplitRule::exact) return longest;
  if (cutting.shard_rule == ShardRule::article) {
    return article_shard_tokens(longest, cutting.max_delay_s, cutting.shard_flops);
  }
  const Transformer model(deck.model, {});
  return delay_shard_tokens(longest, cutting.max_delay_s, cutting.shard_flops,
                            [&](int64_t length) { return model.flop(length); });
}

}  // namespace hat
