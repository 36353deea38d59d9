#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "hat/dataset/dataset.hpp"

namespace hat {

/// Text without an end, to cut documents from.
class TextSource {
 public:
  virtual ~TextSource() = default;
  /// The next `bytes` bytes.
  virtual std::string take(int64_t bytes) = 0;
};

/// The documents of a split one behind the other, each ended by a line feed, from the beginning again at the end. Equal
/// calls give equal text. `dataset` must outlive it.
std::unique_ptr<TextSource> make_dataset_text(const Dataset& dataset, Split split);

/// Text of 16 letters from a Markov chain of order 2 that is itself drawn from `seed`: four letters may follow a pair,
/// with probabilities 0.6, 0.2, 0.15 and 0.05 (summed up where the four are not different). A model that has learnt it
/// needs at most 1.06 nats a letter. `part` chooses another text of the same chain. Depends on nothing but seed, part
/// and position.
std::unique_ptr<TextSource> make_markov_text(uint64_t seed, uint64_t part);

}  // namespace hat
