#include "hat/gradient/shard_size.hpp"

#include <algorithm>
#include <limits>

#include "hat/model/charged_cost.hpp"

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
  const double scale = deck.emulation.length_scale;
  const auto charged = static_cast<int64_t>(scale * static_cast<double>(longest));
  int64_t tokens = 0;
  switch (cutting.shard_rule) {
    case ShardRule::article:
      tokens = article_shard_tokens(charged, cutting.max_delay_s, cutting.shard_flops);
      break;
    case ShardRule::delay: {
      const BlockFlop flop = ChargedCost(deck).total();
      tokens = delay_shard_tokens(charged, cutting.max_delay_s, cutting.shard_flops, [&](int64_t length) {
        const double n = static_cast<double>(length) / scale;
        return flop.of(n, n * n);
      });
      break;
    }
  }
  return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(tokens) / scale), 1, longest);
}

}  // namespace hat
