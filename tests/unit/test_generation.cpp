#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "hat/commands/generation.hpp"
#include "hat/core/error.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/model/layout.hpp"
#include "hat/model/transformer.hpp"

namespace hat {
namespace {

/// A small untrained model over bytes.
class Generation : public testing::Test {
 protected:
  Generation() : config_(make_config()), model_(config_), tokenizer_(make_byte_tokenizer()) {
    const ModelLayout& layout = model_.layout();
    for (size_t b = 0; b < layout.blocks.size(); ++b) {
      blocks_.emplace_back(static_cast<size_t>(layout.blocks[b].size));
      initialize(layout, static_cast<int64_t>(b), 0, blocks_[b].data(), layout.blocks[b].size, 3);
      parameters_.push_back(blocks_[b].data());
    }
  }
  static ModelConfig make_config() {
    ModelConfig config;
    config.width = 16;
    config.layers = 2;
    config.heads = 2;
    config.max_length = 12;
    config.vocabulary = 257;
    return config;
  }
  std::string generate(const std::string& prompt, int64_t tokens, double temperature, uint64_t seed) {
    return generate_text(model_, parameters_, *tokenizer_, prompt, tokens, temperature, seed);
  }

  ModelConfig config_;
  Transformer model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::vector<float>> blocks_;
  ParameterPointers parameters_;
};

TEST_F(Generation, StartsWithThePromptAndRepeatsWithTheSeed) {
  const std::string text = generate("prompt", 20, 1.0, 7);
  EXPECT_EQ(text.substr(0, 6), "prompt");
  EXPECT_GT(text.size(), 6U);
  EXPECT_EQ(generate("prompt", 20, 1.0, 7), text);
  EXPECT_NE(generate("prompt", 20, 1.0, 8), text);
  EXPECT_EQ(generate("prompt", 0, 1.0, 7), "prompt");
}

TEST_F(Generation, TemperatureZeroTakesTheLikeliestToken) {
  // The greedy continuation by hand: arg max of the last position's logits, one token after the other.
  std::vector<int32_t> context{tokenizer_->end_of_text(), 'a', 'b'};
  std::vector<float> logits;
  for (int i = 0; i < 15; ++i) {  // beyond max_length: the window moves
    const size_t length = std::min<size_t>(context.size(), 12);
    const PackedBatch batch{{context.end() - static_cast<std::ptrdiff_t>(length), context.end()},
                            std::vector<int32_t>(length, -1),
                            {0, static_cast<int32_t>(length)}};
    model_.logits(batch, parameters_, logits);
    int32_t best = 0;
    for (int32_t v = 1; v < 257; ++v) {
      if (logits[(length - 1) * 257 + static_cast<size_t>(v)] >
          logits[(length - 1) * 257 + static_cast<size_t>(best)]) {
        best = v;
      }
    }
    if (best == tokenizer_->end_of_text()) break;
    context.push_back(best);
  }
  const std::string expected = tokenizer_->decode(std::span(context).subspan(1));
  EXPECT_EQ(generate("ab", 15, 0.0, 1), expected);
  EXPECT_EQ(generate("ab", 15, 0.0, 2), expected);
}

TEST_F(Generation, DrawsFollowTheDistribution) {
  // The first drawn byte over many seeds against the softmax of the logits: chi-square over three classes of bytes.
  std::vector<float> logits;
  model_.logits({{256}, {-1}, {0, 1}}, parameters_, logits);
  const double temperature = 0.5;
  std::array<double, 3> expected{};
  double sum = 0.0;
  for (size_t v = 0; v < 257; ++v) {
    const double weight = std::exp(static_cast<double>(logits[v]) / temperature);
    sum += weight;
    expected.at(v == 256 ? 2 : v < 128 ? 0 : 1) += weight;
  }
  constexpr int kDraws = 4000;
  std::array<double, 3> counted{};
  for (int seed = 0; seed < kDraws; ++seed) {
    const std::string text = generate("", 1, temperature, static_cast<uint64_t>(seed));
    counted.at(text.empty() ? 2 : static_cast<unsigned char>(text[0]) < 128 ? 0 : 1) += 1;
  }
  double chi_square = 0.0;
  for (size_t c = 0; c < 3; ++c) {
    const double mean = kDraws * expected.at(c) / sum;
    chi_square += (counted.at(c) - mean) * (counted.at(c) - mean) / mean;
  }
  EXPECT_LT(chi_square, 13.8);  // 0.1 % point of 2 degrees of freedom
}

TEST_F(Generation, RefusesLogitsThatAreNotFinite) {
  blocks_.back().assign(blocks_.back().size(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_THROW(generate("a", 3, 1.0, 1), Error);
}

}  // namespace
}  // namespace hat
