#pragma once
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/model/layout.hpp"

namespace hat {

/// FLOP of a forward and a backward pass over one document of n tokens: 6 N per token (N: parameters without position
/// embeddings, the embedding look-up not counted unless the head is tied to it) plus 6 n^2 width per layer, the
/// products of causal attention (Kaplan et al. 2020, Chowdhery et al. 2022, with half of the square masked).
struct BlockFlop {
  double per_token = 0;
  double per_square = 0;  ///< per token squared, of each document
  /// Of documents that have `tokens` tokens together, and `squares` when each one's are squared. Of tokens [b, e) of
  /// one: of(e - b, e^2 - b^2).
  double of(double tokens, double squares) const { return per_token * tokens + per_square * squares; }
};

/// By block of the layout. A tied output matrix is counted in the head, where it is multiplied with.
std::vector<BlockFlop> count_flop(const ModelConfig& config, const ModelLayout& layout);

BlockFlop sum(const std::vector<BlockFlop>& blocks);

}  // namespace hat
