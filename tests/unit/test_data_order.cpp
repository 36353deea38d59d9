#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "hat/dataset/data_order.hpp"
#include "hat/dataset/dataset_writer.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

/// Train documents of the given lengths in tokens; document d repeats the byte d. One validation document per length
/// too.
class DataOrderTest : public ::testing::Test {
 protected:
  Dataset make(const std::vector<int64_t>& lengths) {
    const auto tokenizer = make_byte_tokenizer();
    DatasetWriter writer(folder_ / "d.h5", *tokenizer, {});
    for (const Split split : {Split::train, Split::validation}) {
      for (size_t d = 0; d < lengths.size(); ++d) {
        writer.add_text(split, std::string(static_cast<size_t>(lengths[d] - 1), static_cast<char>(d % 256)));
        writer.end_document(split);
      }
    }
    writer.finish();
    return Dataset(folder_ / "d.h5");
  }
  /// A long tail: 400 documents of 2 to 40 tokens, every 50th of 500.
  Dataset make_long_tail() {
    std::vector<int64_t> lengths;
    for (int64_t d = 0; d < 400; ++d) lengths.push_back(d % 50 == 0 ? 500 : 2 + d * 7 % 39);
    return make(lengths);
  }
  test::TemporaryFolder folder_;
};

TEST_F(DataOrderTest, EveryTokenOnceAnEpoch) {
  const Dataset dataset = make_long_tail();
  DataOrder order(dataset, 7, 100, 64, LongPolicy::cut);
  int64_t index = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<int64_t, int64_t> trained;
    std::set<std::pair<int64_t, int64_t>> begun;
    const int64_t steps = order.steps_per_epoch(epoch);
    for (int64_t s = 0; s < steps; ++s, ++index) {
      const Step& step = order.step(index);
      EXPECT_EQ(step.index, index);
      EXPECT_EQ(step.epoch, epoch);
      int64_t tokens = 0;
      for (const Sequence& sequence : step.sequences) {
        EXPECT_TRUE(begun.emplace(sequence.document, sequence.begin).second) << "a piece came twice";
        EXPECT_EQ(sequence.begin % 64, 0);
        EXPECT_LE(sequence.length, 64);
        EXPECT_GE(sequence.length, 1);
        trained[sequence.document] += sequence.length;
        EXPECT_TRUE(tokens == 0 || tokens + sequence.length / 2 < 100) << "a sequence was added to a full step";
        tokens += sequence.length;
      }
      EXPECT_EQ(step.target_tokens, tokens);
      if (s + 1 < steps) {
        EXPECT_GE(tokens, 100 - 32);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(trained.size()), dataset.documents(Split::train));
    for (const auto& [document, tokens] : trained) EXPECT_EQ(tokens, dataset.length(Split::train, document));
  }
}

// A long document whose pieces stood behind each other would fill whole steps, and their gradients would speak of it
// alone.
TEST_F(DataOrderTest, PiecesOfADocumentAreSpreadOverTheEpoch) {
  const Dataset dataset = make_long_tail();
  DataOrder order(dataset, 7, 100, 64, LongPolicy::cut);
  int64_t neighbours = 0;
  int64_t pieces = 0;
  Sequence before;
  for (int64_t s = 0; s < order.steps_per_epoch(0); ++s) {
    for (const Sequence& sequence : order.step(s).sequences) {
      if (sequence.begin > 0) {
        ++pieces;
        if (before.document == sequence.document) ++neighbours;
      }
      before = sequence;
    }
  }
  EXPECT_GE(pieces, 40);
  EXPECT_LE(neighbours, pieces / 10);
}

TEST_F(DataOrderTest, AnyOrderOfCallsGivesTheSameSteps) {
  const Dataset dataset = make_long_tail();
  DataOrder ascending(dataset, 7, 30, 64, LongPolicy::cut);
  const int64_t count = ascending.steps_per_epoch(0) + ascending.steps_per_epoch(1) + 5;
  ASSERT_GT(ascending.steps_per_epoch(0), 150);  // several anchors
  std::vector<Step> steps;
  for (int64_t i = 0; i < count; ++i) steps.push_back(ascending.step(i));
  DataOrder jumping(dataset, 7, 30, 64, LongPolicy::cut);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = i * 101 % count;
    EXPECT_EQ(jumping.step(index).sequences, steps[static_cast<size_t>(index)].sequences) << index;
    EXPECT_EQ(jumping.step(index).epoch, steps[static_cast<size_t>(index)].epoch);
    EXPECT_EQ(jumping.step(index).target_tokens, steps[static_cast<size_t>(index)].target_tokens);
  }
  DataOrder late(dataset, 7, 30, 64, LongPolicy::cut);
  EXPECT_EQ(late.step(count - 1).sequences, steps.back().sequences);
}

std::vector<int64_t> documents_of_epoch(DataOrder& order, int64_t first_step, int64_t steps) {
  std::vector<int64_t> documents;
  for (int64_t i = 0; i < steps; ++i) {
    for (const Sequence& sequence : order.step(first_step + i).sequences) documents.push_back(sequence.document);
  }
  return documents;
}

TEST_F(DataOrderTest, StepsOfACountHaveThatManySequences) {
  const Dataset dataset = make_long_tail();
  Deck deck;
  deck.batch_tokens = 0;
  deck.cutting.batch_sequences = 48;
  deck.model.max_length = 500;
  DataOrder order(dataset, deck, 500);
  ASSERT_EQ(order.steps_per_epoch(0), 9);  // 400 documents: 8 steps of 48 and a short one of 16
  std::set<int64_t> documents;
  for (int64_t s = 0; s < 9; ++s) {
    const Step& step = order.step(s);
    EXPECT_EQ(step.sequences.size(), s < 8 ? 48U : 16U);
    int64_t tokens = 0;
    for (const Sequence& sequence : step.sequences) {
      EXPECT_TRUE(documents.insert(sequence.document).second);
      tokens += sequence.length;
    }
    EXPECT_EQ(step.target_tokens, tokens);
  }
  EXPECT_EQ(documents.size(), 400U);
  EXPECT_EQ(order.mean_step_tokens(), dataset.tokens(Split::train) * 48 / 400);
}

TEST_F(DataOrderTest, StepsForTokensAreCountedOnTheOrder) {
  const Dataset dataset = make_long_tail();
  Deck deck;
  deck.cutting.batch_sequences = 7;
  deck.model.max_length = 500;
  DataOrder order(dataset, deck, 100);  // pieces of 100: the long documents are five each
  const int64_t steps = order.steps_for_tokens(5000);
  int64_t before = 0;
  for (int64_t s = 0; s + 1 < steps; ++s) before += order.step(s).target_tokens;
  EXPECT_LT(before, 5000);
  EXPECT_GE(before + order.step(steps - 1).target_tokens, 5000);
  EXPECT_EQ(order.steps_for_tokens(0), 0);
  // Over several epochs, as walking through all of them would count.
  const int64_t many = 3 * dataset.tokens(Split::train) + 1234;
  DataOrder walked(dataset, deck, 100);
  int64_t walked_steps = 0;
  for (int64_t tokens = 0; tokens < many; ++walked_steps) tokens += walked.step(walked_steps).target_tokens;
  EXPECT_EQ(order.steps_for_tokens(many), walked_steps);
  for (const Sequence& sequence : order.step(0).sequences) EXPECT_LE(sequence.length, 100);
}

TEST_F(DataOrderTest, CountingStepsTakesNoLongerForMoreOfThem) {
  const Dataset dataset = make_long_tail();
  Deck deck;
  deck.model.max_length = 500;
  deck.cutting.batch_sequences = 7;
  DataOrder sequences(dataset, deck, 100);
  const int64_t of_epoch = sequences.steps_per_epoch(0);
  EXPECT_EQ(sequences.steps_for_epochs(1e6), 1'000'000 * of_epoch);
  const int64_t tokens = dataset.tokens(Split::train);
  EXPECT_EQ(sequences.steps_for_tokens(tokens * 1'000'000'000), 1'000'000'000 * of_epoch);
  EXPECT_EQ(sequences.step(0).epoch, 0);
  deck.cutting.batch_sequences = 0;
  deck.batch_tokens = 100;
  DataOrder by_tokens(dataset, deck, 100);
  EXPECT_EQ(by_tokens.steps_for_tokens(1'000'000'000'001), 10'000'000'001);
  EXPECT_EQ(by_tokens.steps_for_epochs(2), by_tokens.steps_per_epoch(0) + by_tokens.steps_per_epoch(1));
  EXPECT_THROW(by_tokens.steps_for_epochs(1e6), InputError);
}

TEST_F(DataOrderTest, ShufflesDifferBySeedAndEpoch) {
  const Dataset dataset = make(std::vector<int64_t>(100, 10));
  DataOrder one(dataset, 1, 50, 64, LongPolicy::cut);
  DataOrder two(dataset, 2, 50, 64, LongPolicy::cut);
  const auto first = documents_of_epoch(one, 0, 20);
  EXPECT_NE(first, documents_of_epoch(one, 20, 20));
  EXPECT_NE(first, documents_of_epoch(two, 0, 20));
  std::vector<int64_t> in_order(100);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_NE(first, in_order);
}

TEST_F(DataOrderTest, LongDocumentsAreRefusedOnRequest) {
  const Dataset dataset = make({5, 9, 65, 5});
  EXPECT_NO_THROW(DataOrder(dataset, 1, 50, 65, LongPolicy::refuse));
  test::expect_input_error([&] { DataOrder(dataset, 1, 50, 64, LongPolicy::refuse); },
                           {"d.h5", "document 2 has 65 tokens", "max_length is 64", "refuse"});
}

TEST_F(DataOrderTest, BatchesArePackedWithShiftedInputs) {
  const Dataset dataset = make({3, 1, 6});
  const PackedBatch batch = read_batch(dataset, Split::train, {{0, 0, 3}, {2, 0, 4}, {2, 4, 2}, {1, 0, 1}});
  EXPECT_EQ(batch.offsets, (std::vector<int32_t>{0, 3, 7, 9, 10}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{0, 0, 256, 2, 2, 2, 2, 2, 256, 256}));
  EXPECT_EQ(batch.inputs, (std::vector<int32_t>{256, 0, 0, 256, 2, 2, 2, 2, 2, 256}));
}

int64_t token_count(const std::vector<std::vector<Sequence>>& groups) {
  int64_t tokens = 0;
  for (const auto& group : groups) {
    for (const Sequence& sequence : group) tokens += sequence.length;
  }
  return tokens;
}

TEST_F(DataOrderTest, ValidationCoversAllOrAPart) {
  const Dataset dataset = make_long_tail();
  const auto all = validation_groups(dataset, 64, 200, 0);
  EXPECT_EQ(token_count(all), dataset.tokens(Split::validation));
  EXPECT_EQ(text_bytes(dataset, Split::validation, all), dataset.text_bytes(Split::validation));
  for (const auto& group : all) {
    EXPECT_LE(token_count({group}), 200);
    EXPECT_FALSE(group.empty());
  }
  const auto part = validation_groups(dataset, 64, 200, 1000);
  EXPECT_LE(token_count(part), 1000);
  EXPECT_GT(token_count(part), 400);
  std::map<int64_t, int64_t> tokens;
  for (const auto& group : part) {
    for (const Sequence& sequence : group) tokens[sequence.document] += sequence.length;
  }
  for (const auto& [document, count] : tokens) EXPECT_EQ(count, dataset.length(Split::validation, document));
  EXPECT_EQ(text_bytes(dataset, Split::validation, part), token_count(part) - static_cast<int64_t>(tokens.size()));
  // Documents come from everywhere in the file, not from its beginning.
  EXPECT_GT(tokens.rbegin()->first, 200);
  test::expect_input_error([&] { validation_groups(dataset, 64, 200, 1); },
                           {"eval.tokens: no validation document of ", "d.h5 has at most 1 token"});
}

}  // namespace
}  // namespace hat
