#pragma once
#include <cstdint>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/model/flop_count.hpp"

namespace hat {

/// What the deck charges for work and transfers: the FLOP and the size of the model that cost_of names, at lengths
/// multiplied by length_scale; of the deck's own model unless the deck says otherwise. In terms of real tokens, real
/// bytes and the blocks of the deck's model. Immutable.
class ChargedCost {
 public:
  /// `deck.model.vocabulary` must be set.
  explicit ChargedCost(const Deck& deck);

  /// FLOP of forward and backward of one document of `length` real tokens: total().of(length, length^2).
  double flop(int64_t length) const { return flop(0, length); }
  /// Of tokens [begin, end) of a document: total().of(end - begin, end^2 - begin^2). Those of all ranges add up to that
  /// of the document.
  double flop(int64_t begin, int64_t end) const;

  /// By block of the deck's model. Layers of the charged model are spread over its layers evenly, attention to
  /// attention and MLP to MLP, so the sum over blocks is total(); the embedding costs nothing.
  const std::vector<BlockFlop>& blocks() const { return blocks_; }
  const BlockFlop& total() const { return total_; }

  /// Bytes charged for one real byte of parameters or gradients: the ratio of the models' parameters.
  double bytes_per_byte() const { return bytes_per_byte_; }
  /// The same for keys and values, and their gradients, of a real token in all layers.
  double exchange_bytes_per_byte() const { return exchange_bytes_per_byte_; }

 private:
  std::vector<BlockFlop> blocks_;
  BlockFlop total_;
  double bytes_per_byte_ = 1;
  double exchange_bytes_per_byte_ = 1;
};

}  // namespace hat
