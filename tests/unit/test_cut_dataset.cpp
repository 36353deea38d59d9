#include <cmath>
#include <map>

#include "hat/dataset/cut_dataset.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

std::string text_of(const Dataset& dataset, Split split, int64_t document) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(split, document)));
  dataset.read(split, document, 0, tokens);
  return dataset.tokenizer().decode(tokens);
}

TEST(CutDataset, HasTheGivenLengthsAndText) {
  const test::TemporaryFolder folder;
  const auto train = make_markov_text(5, 0);
  const auto validation = make_markov_text(5, 1);
  write_cut_dataset(folder / "cut.h5", {{10, 2, 300}, *train}, {{40}, *validation});
  const Dataset dataset(folder / "cut.h5");
  dataset.verify();
  ASSERT_EQ(dataset.documents(Split::train), 3);
  const std::string all = make_markov_text(5, 0)->take(9 + 1 + 299);
  EXPECT_EQ(text_of(dataset, Split::train, 0), all.substr(0, 9));
  EXPECT_EQ(text_of(dataset, Split::train, 1), all.substr(9, 1));
  EXPECT_EQ(text_of(dataset, Split::train, 2), all.substr(10));
  EXPECT_EQ(dataset.length(Split::train, 2), 300);
  EXPECT_EQ(text_of(dataset, Split::validation, 0), make_markov_text(5, 1)->take(39));
}

TEST(CutDataset, DocumentsWithoutTextAreRefused) {
  const test::TemporaryFolder folder;
  const auto text = make_markov_text(5, 0);
  EXPECT_THROW(write_cut_dataset(folder / "cut.h5", {{1}, *text}, {{4}, *text}), Error);
}

TEST(CutDataset, DatasetTextGoesRound) {
  const test::TemporaryFolder folder;
  const auto text = make_markov_text(7, 0);
  write_cut_dataset(folder / "source.h5", {{4, 3}, *text}, {{2}, *text});
  const Dataset source(folder / "source.h5");
  const std::string once = text_of(source, Split::train, 0) + "\n" + text_of(source, Split::train, 1) + "\n";
  const auto again = make_dataset_text(source, Split::train);
  EXPECT_EQ(again->take(5), once.substr(0, 5));
  EXPECT_EQ(again->take(9), (once.substr(5) + once + once).substr(0, 9));
}

// Learnable: the letter after a pair is far less uncertain than the letter alone.
TEST(CutDataset, MarkovTextIsPredictableFromPairs) {
  constexpr int64_t kBytes = 200000;
  const std::string text = make_markov_text(3, 0)->take(kBytes);
  EXPECT_NE(text, make_markov_text(4, 0)->take(kBytes));
  EXPECT_NE(text, make_markov_text(3, 1)->take(kBytes));
  const auto entropy = [&](size_t context) {
    std::map<std::string, double> whole;
    std::map<std::string, double> before;
    for (size_t i = context; i < text.size(); ++i) {
      ++whole[text.substr(i - context, context + 1)];
      ++before[text.substr(i - context, context)];
    }
    double nats = 0;
    for (const auto& [letters, count] : whole) nats -= count * std::log(count / before[letters.substr(0, context)]);
    return nats / static_cast<double>(text.size());
  };
  EXPECT_LT(entropy(2), 1.07);
  EXPECT_GT(entropy(0), 2.0);
}

}  // namespace
}  // namespace hat
