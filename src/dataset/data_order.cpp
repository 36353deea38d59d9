#include "hat/dataset/data_order.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hat/core/error.hpp"
#include "hat/core/random.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {
// Streams of the counter-based random numbers used here; the epoch is added.
constexpr uint64_t kShuffleStream = 0x5348554646ULL << 24;
constexpr uint64_t kValidationStream = 0x56414c4944ULL << 24;
// Positions of every so many steps are remembered, so that going back is cheap without one entry per step.
constexpr int64_t kAnchorSteps = 64;
// Steps of that many epochs are counted whatever it takes; of more, of at most so many sequences: some seconds.
constexpr double kFewEpochs = 100;
constexpr double kMostCounted = 3e8;
constexpr double kCountedAtOnce = 2e7;  // in a second or two
}  // namespace

struct DataOrder::State {
  std::vector<int64_t> first_piece;  // of each document, and the end: pieces are numbered through all documents
  int64_t epoch = -1;
  std::vector<int64_t> order;           // pieces in the order of the epoch
  std::vector<int64_t> anchors;         // position in `order` of steps 0, kAnchorSteps, 2 kAnchorSteps ... of the epoch
  std::vector<int64_t> first_steps{0};  // global index of the first step of each epoch known so far, and the end
  int64_t next = 0;                     // position of the step after `current`
  int64_t next_local = 0;               // its index in the epoch
  Step current;
};

namespace {
/// Fisher-Yates with counter-based random numbers.
void shuffle(std::vector<int64_t>& values, uint64_t seed, uint64_t stream) {
  for (uint64_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random_below(seed, stream, i, i)]);
}
}  // namespace

namespace {
Deck deck_of(uint64_t seed, int64_t batch_tokens, int64_t max_length, LongPolicy policy) {
  Deck deck;
  deck.seed = seed;
  deck.batch_tokens = batch_tokens;
  deck.model.max_length = max_length;
  deck.data.long_documents = policy;
  return deck;
}
}  // namespace

DataOrder::DataOrder(const Dataset& dataset, uint64_t seed, int64_t batch_tokens, int64_t max_length, LongPolicy policy)
    : DataOrder(dataset, deck_of(seed, batch_tokens, max_length, policy), max_length) {}

DataOrder::DataOrder(const Dataset& dataset, const Deck& deck, int64_t piece_tokens)
    : dataset_(dataset),
      seed_(deck.seed),
      batch_tokens_(deck.batch_tokens),
      batch_sequences_(deck.cutting.batch_sequences),
      piece_tokens_(piece_tokens),
      state_(std::make_shared<State>()) {
  const int64_t max_length = deck.model.max_length;
  const LongPolicy policy = deck.data.long_documents;
  if (batch_sequences_ < 1 && batch_tokens_ < 1) throw Error("batch_tokens or batch_sequences is positive");
  if (piece_tokens < 1 || piece_tokens > max_length) throw Error("piece_tokens is positive and at most max_length");
  const int64_t documents = dataset.documents(Split::train);
  state_->first_piece.resize(static_cast<size_t>(documents) + 1, 0);
  for (int64_t document = 0; document < documents; ++document) {
    const int64_t length = dataset.length(Split::train, document);
    if (policy == LongPolicy::refuse && length > max_length) {
      throw InputError(dataset.path().string(), "train",
                       fmt::format("document {} has {} tokens, model.max_length is {} and data.long = refuse", document,
                                   length, max_length));
    }
    const auto d = static_cast<size_t>(document);
    state_->first_piece[d + 1] = state_->first_piece[d] + (length + piece_tokens - 1) / piece_tokens;
  }
}

Sequence DataOrder::piece(int64_t number) const {
  const std::vector<int64_t>& first_piece = state_->first_piece;
  const auto after = std::upper_bound(first_piece.begin(), first_piece.end(), number);
  const int64_t document = (after - first_piece.begin()) - 1;
  const int64_t begin = (number - first_piece[static_cast<size_t>(document)]) * piece_tokens_;
  return {document, begin, std::min(dataset_.length(Split::train, document) - begin, piece_tokens_)};
}

bool DataOrder::is_full(int64_t tokens, int64_t sequences, int64_t next_length) const {
  if (batch_sequences_ > 0) return sequences == batch_sequences_;
  return tokens > 0 && tokens + next_length / 2 >= batch_tokens_;
}

// Appends the sequences of the step at `position` (none is taken over the epoch's end) and returns where the next one
// begins. `step` may be null to only move on.
int64_t DataOrder::take_step(int64_t position, Step* step) const {
  int64_t taken = 0;
  for (const int64_t begin = position; position < static_cast<int64_t>(state_->order.size()); ++position) {
    const Sequence sequence = piece(state_->order[static_cast<size_t>(position)]);
    if (is_full(taken, position - begin, sequence.length)) break;
    taken += sequence.length;
    if (step != nullptr) step->sequences.push_back(sequence);
  }
  if (step != nullptr) step->target_tokens = taken;
  return position;
}

void DataOrder::start_epoch(int64_t epoch) {
  State& state = *state_;
  state.epoch = epoch;
  state.order.resize(static_cast<size_t>(state.first_piece.back()));
  std::iota(state.order.begin(), state.order.end(), int64_t{0});
  shuffle(state.order, seed_, kShuffleStream + static_cast<uint64_t>(epoch));
  state.anchors.clear();
  int64_t steps = 0;
  for (int64_t position = 0; position < static_cast<int64_t>(state.order.size()); ++steps) {
    if (steps % kAnchorSteps == 0) state.anchors.push_back(position);
    position = take_step(position, nullptr);
  }
  state.next = 0;
  state.next_local = 0;
  if (static_cast<int64_t>(state.first_steps.size()) == epoch + 1) {
    state.first_steps.push_back(state.first_steps.back() + steps);
  }
}

int64_t DataOrder::steps_per_epoch(int64_t epoch) {
  // The number depends on the epoch's shuffle, so every epoch up to this one is laid out once.
  while (static_cast<int64_t>(state_->first_steps.size()) < epoch + 2) {
    start_epoch(static_cast<int64_t>(state_->first_steps.size()) - 1);
  }
  const auto at = static_cast<size_t>(epoch);
  return state_->first_steps[at + 1] - state_->first_steps[at];
}

int64_t DataOrder::steps_for_epochs(double epochs, const std::function<bool()>& goes_on) {
  const auto whole = static_cast<int64_t>(std::floor(epochs));
  const double rest = epochs - static_cast<double>(whole);
  const int64_t pieces = state_->first_piece.back();
  const auto of_rest = [rest](int64_t steps) {
    return static_cast<int64_t>(std::ceil(rest * static_cast<double>(steps)));
  };
  if (batch_sequences_ > 0) {
    const int64_t steps = (pieces + batch_sequences_ - 1) / batch_sequences_;
    return whole * steps + of_rest(steps);
  }
  if (epochs > kFewEpochs && epochs * static_cast<double>(pieces) > kMostCounted) {
    throw KeyError("train.epochs",
                   fmt::format("the steps of {} passes over {} sequences would take too long to count; set "
                               "train.steps or train.tokens",
                               epochs, pieces));
  }
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < whole && (!goes_on || goes_on()); ++epoch) steps += steps_per_epoch(epoch);
  return rest > 0 ? steps + of_rest(steps_per_epoch(whole)) : steps;
}

bool DataOrder::counts_long(double epochs) const {
  const double counted = epochs * static_cast<double>(state_->first_piece.back());
  return batch_sequences_ == 0 && counted > kCountedAtOnce;
}

int64_t DataOrder::steps_for_tokens(int64_t target_tokens) {
  if (batch_sequences_ == 0) return (target_tokens + batch_tokens_ - 1) / batch_tokens_;
  // Every epoch has all tokens, in equally many steps; only the last one has to be walked through.
  const int64_t epoch_tokens = dataset_.tokens(Split::train);
  const int64_t whole = target_tokens / epoch_tokens;
  int64_t steps = whole * ((state_->first_piece.back() + batch_sequences_ - 1) / batch_sequences_);
  int64_t left = target_tokens - whole * epoch_tokens;
  if (left == 0) return steps;
  start_epoch(whole);
  for (int64_t position = 0; left > 0; ++steps) {
    Step step;
    position = take_step(position, &step);
    left -= step.target_tokens;
  }
  return steps;
}

int64_t DataOrder::mean_step_tokens() const {
  if (batch_sequences_ == 0) return batch_tokens_;
  const double mean =
      static_cast<double>(dataset_.tokens(Split::train)) / static_cast<double>(state_->first_piece.back());
  return std::max<int64_t>(1, static_cast<int64_t>(mean * static_cast<double>(batch_sequences_)));
}

const Step& DataOrder::step(int64_t index) {
  State& state = *state_;
  if (index < 0) throw Error(fmt::format("step {} does not exist", index));
  if (!state.current.sequences.empty() && state.current.index == index) return state.current;
  while (state.first_steps.back() <= index) steps_per_epoch(static_cast<int64_t>(state.first_steps.size()) - 1);
  const auto after = std::upper_bound(state.first_steps.begin(), state.first_steps.end(), index);
  const int64_t epoch = (after - state.first_steps.begin()) - 1;
  if (epoch != state.epoch) start_epoch(epoch);
  const int64_t local = index - state.first_steps[static_cast<size_t>(epoch)];
  if (local < state.next_local || local - state.next_local > kAnchorSteps) {
    state.next = state.anchors[static_cast<size_t>(local / kAnchorSteps)];
    state.next_local = local / kAnchorSteps * kAnchorSteps;
  }
  for (; state.next_local < local; ++state.next_local) {
    state.next = take_step(state.next, nullptr);
  }
  state.current = Step{index, epoch, {}, 0};
  state.next = take_step(state.next, &state.current);
  state.next_local = local + 1;
  return state.current;
}

PackedBatch read_batch(const Dataset& dataset, Split split, const std::vector<Sequence>& sequences) {
  int64_t total = 0;
  for (const Sequence& sequence : sequences) total += sequence.length;
  if (total > INT32_MAX) throw Error(fmt::format("a batch of {} tokens is too long (limit 2^31 - 1)", total));
  PackedBatch batch;
  batch.inputs.reserve(static_cast<size_t>(total));
  batch.targets.resize(static_cast<size_t>(total));
  batch.offsets.reserve(sequences.size() + 1);
  batch.offsets.push_back(0);
  const std::span<int32_t> targets(batch.targets);
  for (const Sequence& sequence : sequences) {
    const auto begin = static_cast<size_t>(batch.offsets.back());
    const auto own = targets.subspan(begin, static_cast<size_t>(sequence.length));
    // Input of a target is the token before it in the document; a later piece of a document reads its last one again.
    int32_t previous = dataset.tokenizer().end_of_text();
    if (sequence.begin > 0) dataset.read(split, sequence.document, sequence.begin - 1, {&previous, 1});
    dataset.read(split, sequence.document, sequence.begin, own);
    batch.inputs.push_back(previous);
    batch.inputs.insert(batch.inputs.end(), own.begin(), own.end() - 1);
    batch.offsets.push_back(static_cast<int32_t>(begin + own.size()));
  }
  return batch;
}

namespace {
/// All validation documents, or whole ones of at most `max_tokens` together: taken in a fixed random order (the files
/// of a corpus stand one behind the other, so the first documents would be of one kind), then sorted.
std::vector<int64_t> choose_validation(const Dataset& dataset, int64_t max_tokens) {
  std::vector<int64_t> documents(static_cast<size_t>(dataset.documents(Split::validation)));
  std::iota(documents.begin(), documents.end(), int64_t{0});
  if (max_tokens <= 0 || dataset.tokens(Split::validation) <= max_tokens) return documents;
  shuffle(documents, 0, kValidationStream);
  std::vector<int64_t> chosen;
  int64_t tokens = 0;
  for (const int64_t document : documents) {
    const int64_t length = dataset.length(Split::validation, document);
    if (tokens + length > max_tokens) {
      if (chosen.empty()) continue;
      break;
    }
    tokens += length;
    chosen.push_back(document);
  }
  if (chosen.empty()) {
    throw KeyError("eval.tokens", fmt::format("no validation document of {} has at most {}", dataset.path().string(),
                                              counted(max_tokens, "token")));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}
}  // namespace

std::vector<std::vector<Sequence>> validation_groups(const Dataset& dataset, int64_t max_length, int64_t group_tokens,
                                                     int64_t max_tokens) {
  std::vector<std::vector<Sequence>> groups;
  int64_t in_group = 0;
  for (const int64_t document : choose_validation(dataset, max_tokens)) {
    const int64_t length = dataset.length(Split::validation, document);
    for (int64_t begin = 0; begin < length; begin += max_length) {
      const int64_t piece = std::min(max_length, length - begin);
      if (groups.empty() || in_group + piece > group_tokens) {
        groups.emplace_back();
        in_group = 0;
      }
      groups.back().push_back({document, begin, piece});
      in_group += piece;
    }
  }
  return groups;
}

int64_t text_bytes(const Dataset& dataset, Split split, const std::vector<std::vector<Sequence>>& groups) {
  int64_t bytes = 0;
  std::vector<int32_t> tokens;
  for (const auto& group : groups) {
    for (const Sequence& sequence : group) {
      tokens.resize(static_cast<size_t>(sequence.length));
      dataset.read(split, sequence.document, sequence.begin, tokens);
      bytes += static_cast<int64_t>(dataset.tokenizer().decode(tokens).size());
    }
  }
  return bytes;
}

}  // namespace hat
