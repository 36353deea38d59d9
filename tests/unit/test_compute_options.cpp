// How a Transformer computes must not change what it computes.
#include <gtest/gtest.h>

#include <cmath>

#include "hat/model/precision_choice.hpp"
#include "hat/model/transformer.hpp"
#include "model_support.hpp"

namespace hat::test {
namespace {

struct Result {
  double nats;
  BlockValues gradients;
};

Result gradient(const ModelConfig& config, const PackedBatch& batch, const ComputeOptions& options) {
  Transformer model(config, options);
  const BlockValues parameters = formula_parameters(model.layout(), 3, 0.2);
  Result result{0.0, BlockValues(model.layout())};
  PassObserver nobody;
  result.nats = model.gradient(batch, parameters.parameters(), result.gradients.gradients(), nobody).nats;
  return result;
}

void expect_equal_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.nats, b.nats);
  for (size_t block = 0; block < a.gradients.blocks(); ++block) {
    EXPECT_EQ(a.gradients.block(block), b.gradients.block(block)) << block;
  }
}

PackedBatch long_and_short(int64_t vocabulary) { return random_batch({1, 300, 7, 64, 130}, vocabulary, 11); }

ModelConfig grouped_llama() {
  ModelConfig config = small_llama();
  config.max_length = 400;
  return config;
}

ModelConfig long_gpt2() {
  ModelConfig config = small_gpt2();
  config.max_length = 400;
  return config;
}

TEST(Recomputation, GivesTheSameBits) {
  for (const ModelConfig& config : {grouped_llama(), long_gpt2()}) {
    const PackedBatch batch = long_and_short(config.vocabulary);
    for (const Element arithmetic : {Element::fp32, Element::bf16}) {
      for (const int64_t chunk : {50, 2048}) {
        const Result none = gradient(config, batch, {.arithmetic = arithmetic, .chunk_tokens = chunk});
        for (const Recompute level : {Recompute::inner, Recompute::full}) {
          expect_equal_bits(
              none, gradient(config, batch, {.arithmetic = arithmetic, .recompute = level, .chunk_tokens = chunk}));
        }
      }
    }
  }
}

// A document that goes through chunk by chunk has the gradient of the document in one piece.
TEST(Chunks, GiveTheGradientOfTheWhole) {
  for (const ModelConfig& config : {grouped_llama(), long_gpt2()}) {
    for (const PackedBatch& batch : {random_batch({390}, config.vocabulary, 5), long_and_short(config.vocabulary)}) {
      const Result whole = gradient(config, batch, {.chunk_tokens = 2048});
      for (const int64_t chunk : {1, 7, 64, 128, 389}) {
        const Result split = gradient(config, batch, {.chunk_tokens = chunk});
        EXPECT_NEAR(split.nats, whole.nats, 1e-6 * whole.nats);
        for (size_t block = 0; block < whole.gradients.blocks(); ++block) {
          EXPECT_LE(relative_distance(split.gradients.block(block), whole.gradients.block(block)), 1e-5)
              << "chunks of " << chunk << ", block " << block;
        }
      }
    }
  }
}

TEST(Threads, ChangeNothingButRounding) {
  const ModelConfig config = grouped_llama();
  const PackedBatch batch = long_and_short(config.vocabulary);
  for (const Element arithmetic : {Element::fp32, Element::bf16}) {
    const Result one = gradient(config, batch, {.arithmetic = arithmetic});
    for (const int threads : {2, 3}) {
      const Result more = gradient(config, batch, {.threads = threads, .arithmetic = arithmetic});
      for (size_t block = 0; block < one.gradients.blocks(); ++block) {
        EXPECT_LE(relative_distance(more.gradients.block(block), one.gradients.block(block)), 1e-6) << block;
      }
    }
  }
}

TEST(BufferBytes, FollowWhatIsKept) {
  const auto bytes = [](Recompute level, Element arithmetic, int64_t tokens, int64_t chunk = 64) {
    ModelConfig config = grouped_llama();
    config.layers = 8;
    Transformer model(config, {.arithmetic = arithmetic, .recompute = level, .chunk_tokens = chunk});
    return model.buffer_bytes(tokens, 100);
  };
  EXPECT_LT(bytes(Recompute::inner, Element::fp32, 1000), bytes(Recompute::none, Element::fp32, 1000));
  EXPECT_LT(bytes(Recompute::full, Element::fp32, 1000), bytes(Recompute::inner, Element::fp32, 1000));
  EXPECT_LT(bytes(Recompute::none, Element::bf16, 1000), bytes(Recompute::none, Element::fp32, 1000));
  EXPECT_LT(bytes(Recompute::full, Element::fp32, 1000), bytes(Recompute::full, Element::fp32, 1000, 1000));
  EXPECT_LT(bytes(Recompute::none, Element::fp32, 1000), bytes(Recompute::none, Element::fp32, 2000));
}

TEST(ProductTimes, AreMeasuredInBothPrecisions) {
  const ProductTimes times = measure_products(small_gpt2(), {});
  EXPECT_GT(times.fp32_s, 0.0);
  EXPECT_GT(times.bf16_s, 0.0);
  EXPECT_LT(times.fp32_s + times.bf16_s, 10.0);
}

}  // namespace
}  // namespace hat::test
