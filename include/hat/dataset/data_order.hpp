#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/core/packed_batch.hpp"
#include "hat/core/sequence.hpp"
#include "hat/dataset/dataset.hpp"

namespace hat {

/// One global batch: whole sequences, about batch_tokens target tokens or exactly batch_sequences of them, never over
/// the end of an epoch.
struct Step {
  int64_t index = 0;
  int64_t epoch = 0;
  std::vector<Sequence> sequences;
  int64_t target_tokens = 0;
};

/// The order in which the training documents are used. Everybody who makes one from the same arguments sees the same
/// steps, so nobody has to send them. Each epoch is a seeded global shuffle of all sequences: the pieces of a cut
/// document are shuffled like documents of their own, or a long one would fill whole steps and every gradient would
/// speak of one document only. A step takes sequences until it has about batch_tokens target tokens, or exactly
/// batch_sequences of them where that is set. Memory: 8 bytes per document and 8 per sequence.
class DataOrder {
 public:
  /// Throws InputError when a document is longer than max_length and the policy is refuse.
  DataOrder(const Dataset& dataset, uint64_t seed, int64_t batch_tokens, int64_t max_length, LongPolicy policy);
  /// Of a deck. Documents are cut into pieces of `piece_tokens` (at most model.max_length; shard_size.hpp).
  DataOrder(const Dataset& dataset, const Deck& deck, int64_t piece_tokens);

  /// Any order of calls works; ascending calls are cheap (amortised O(sequences of the step)).
  const Step& step(int64_t index);
  int64_t steps_per_epoch(int64_t epoch);
  /// Steps of so many passes. Their number in an epoch depends on its shuffle, unless batch_sequences is set: throws
  /// InputError when that would take too long to count. Once `goes_on` says no it is given up; the result means
  /// nothing.
  int64_t steps_for_epochs(double epochs, const std::function<bool()>& goes_on = {});
  /// Whether that takes more than a moment, about which users wonder.
  bool counts_long(double epochs) const;
  /// Steps from the beginning of training until `target_tokens` are trained; with batch_tokens as if every
  /// step had exactly so many. O(sequences of an epoch).
  int64_t steps_for_tokens(int64_t target_tokens);
  /// Target tokens that a step has: batch_tokens, or those of batch_sequences sequences of mean length, at least 1.
  int64_t mean_step_tokens() const;

 private:
  void start_epoch(int64_t epoch);
  Sequence piece(int64_t number) const;
  int64_t take_step(int64_t position, Step* step) const;
  bool is_full(int64_t tokens, int64_t sequences, int64_t next_length) const;
  const Dataset& dataset_;
  uint64_t seed_;
  int64_t batch_tokens_;
  int64_t batch_sequences_;  // 0: steps by tokens
  int64_t piece_tokens_;
  struct State;
  std::shared_ptr<State> state_;
};

/// Reads the sequences into one packed batch.
PackedBatch read_batch(const Dataset& dataset, Split split, const std::vector<Sequence>& sequences);

/// The validation documents (cut at max_length), at most `max_tokens` target tokens if that is > 0, packed into groups
/// of about `group_tokens`.
std::vector<std::vector<Sequence>> validation_groups(const Dataset& dataset, int64_t max_length, int64_t group_tokens,
                                                     int64_t max_tokens);

/// Bytes of text among the target tokens of those groups (end-of-text tokens are none).
int64_t text_bytes(const Dataset& dataset, Split split, const std::vector<std::vector<Sequence>>& groups);

}  // namespace hat
