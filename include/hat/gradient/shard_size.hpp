#pragma once
#include <cstdint>
#include <functional>

#include "hat/config/deck.hpp"

namespace hat {

/// Fewest tokens of a piece, unless the sequence itself is shorter: less does not keep matrix products busy.
inline constexpr int64_t kFewestShardTokens = 512;

/// The article's rule as printed: min(length, max(512, int(max_delay_s * flops / 8))) tokens. `max_delay_s` in seconds,
/// `flops` in FLOP/s: by its units it charges 8 FLOP for a token, whatever the model, so for any device of today a
/// document is never cut.
int64_t article_shard_tokens(int64_t length, double max_delay_s, double flops);

/// The most tokens whose `flop_of_length` (FLOP of forward and backward of one document, ascending with the length)
/// take max_delay_s at `flops` FLOP/s, at least 512, at most `length`.
int64_t delay_shard_tokens(int64_t length, double max_delay_s, double flops,
                           const std::function<double(int64_t)>& flop_of_length);

/// Longest sequence that documents are cut into, in real tokens: model.max_length, or less under split = independent.
/// The rules count charged tokens and FLOP (cost_of, length_scale). `deck.model.vocabulary` must be set.
int64_t piece_tokens(const Deck& deck);

}  // namespace hat
