// One document computed by the members of a gang, each its range of it: the sums of their losses and gradients are
// those of the document computed by one, whatever the cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gang_support.hpp"
#include "hat/core/error.hpp"

namespace hat::test {
namespace {

struct Result {
  explicit Result(const ModelLayout& layout) : gradients(layout) {}
  LossSum loss;
  BlockValues gradients;
};

ModelConfig long_gpt2(bool tied = true) {
  ModelConfig config = small_gpt2();
  config.max_length = 200;
  config.tied = tied;
  return config;
}

ModelConfig tied_llama() {
  ModelConfig config = small_llama();
  config.tied = true;
  return config;
}

Result whole_result(const ModelConfig& config, const ComputeOptions& options, const PackedBatch& batch) {
  Transformer model(config, options);
  const BlockValues parameters = formula_parameters(model.layout(), 3, 0.3);
  Result result(model.layout());
  PassObserver nobody;
  result.loss = model.gradient(batch, parameters.parameters(), result.gradients.gradients(), nobody);
  return result;
}

/// The members' results, added. Before that each computes the same with parameters that are not numbers: whatever a
/// pass leaves behind, and reads without having written it, shows.
Result gang_result(const ModelConfig& config, const ComputeOptions& options, const PackedBatch& batch,
                   const std::vector<int64_t>& bounds) {
  const ModelLayout layout = make_layout(config);
  const BlockValues parameters = formula_parameters(layout, 3, 0.3);
  BlockValues no_numbers(layout);
  for (size_t b = 0; b < no_numbers.blocks(); ++b) {
    std::fill(no_numbers.block(b).begin(), no_numbers.block(b).end(), std::numeric_limits<float>::quiet_NaN());
  }
  std::vector<Transformer> models;
  std::vector<Result> results;
  for (size_t member = 0; member + 1 < bounds.size(); ++member) {
    models.emplace_back(config, options);
    results.emplace_back(layout);
  }
  run_gang(bounds, config, options.arithmetic, [&](const GangRange& range, MemoryExchange& exchange) {
    PassObserver nobody;
    BlockValues gradients(layout);
    models[static_cast<size_t>(range.member)].gradient(range_of(batch, range), no_numbers.parameters(),
                                                       gradients.gradients(), nobody, &exchange);
  });
  run_gang(bounds, config, options.arithmetic, [&](const GangRange& range, MemoryExchange& exchange) {
    PassObserver nobody;
    Result& result = results[static_cast<size_t>(range.member)];
    result.loss = models[static_cast<size_t>(range.member)].gradient(range_of(batch, range), parameters.parameters(),
                                                                     result.gradients.gradients(), nobody, &exchange);
  });
  Result sum(layout);
  for (const Result& result : results) {
    sum.loss.nats += result.loss.nats;
    sum.loss.tokens += result.loss.tokens;
    for (size_t b = 0; b < sum.gradients.blocks(); ++b) {
      const std::vector<float>& from = result.gradients.block(b);
      std::transform(from.begin(), from.end(), sum.gradients.block(b).begin(), sum.gradients.block(b).begin(),
                     std::plus<>());
    }
  }
  return sum;
}

/// Largest relative distance of the tensors' gradients. The bias of the keys has none (test_model.cpp), and neither
/// have queries and keys of a document of one token.
double largest_distance(const ModelLayout& layout, Result& actual, Result& expected) {
  double largest = 0.0;
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    for (const TensorSpec& tensor : layout.blocks[b].tensors) {
      if (tensor.name == "k.bias") continue;
      if (expected.loss.tokens == 1 && (tensor.name.starts_with("q.") || tensor.name.starts_with("k."))) continue;
      const double distance =
          relative_distance(actual.gradients.tensor(b, tensor), expected.gradients.tensor(b, tensor));
      EXPECT_TRUE(std::isfinite(distance)) << layout.blocks[b].name << "." << tensor.name;
      largest = std::max(largest, distance);
    }
  }
  return largest;
}

/// Ranges of about equal length.
std::vector<int64_t> even_bounds(int64_t length, int64_t members) {
  std::vector<int64_t> bounds;
  for (int64_t i = 0; i <= members; ++i) bounds.push_back(length * i / members);
  return bounds;
}

void expect_exact(const ModelConfig& config, const ComputeOptions& options, int32_t length,
                  const std::vector<int64_t>& bounds) {
  SCOPED_TRACE(testing::PrintToString(bounds));
  const PackedBatch batch = random_batch({length}, config.vocabulary, 2);
  Result expected = whole_result(config, options, batch);
  Result actual = gang_result(config, options, batch, bounds);
  EXPECT_EQ(actual.loss.tokens, expected.loss.tokens);
  EXPECT_NEAR(actual.loss.nats, expected.loss.nats, 1e-5 * expected.loss.nats);
  EXPECT_LE(largest_distance(make_layout(config), actual, expected), 1e-5);
}

TEST(GangRange, OfAnyNumberOfMembersAddsUpToTheWhole) {
  for (const ModelConfig& config : {small_llama(), tied_llama(), long_gpt2(), long_gpt2(/*tied=*/false)}) {
    for (const int64_t members : {1, 2, 3, 4, 7}) {
      expect_exact(config, {.chunk_tokens = 16}, 137, even_bounds(137, members));
    }
  }
}

TEST(GangRange, OfOneTokenOrSomeAddsUpToTheWhole) {
  for (const ModelConfig& config : {small_llama(), long_gpt2()}) {
    expect_exact(config, {}, 3, {0, 1, 2, 3});
    expect_exact(config, {}, 1, {0, 1});
    expect_exact(config, {}, 130, {0, 1, 2, 97, 98, 130});
    expect_exact(config, {}, 130, {0, 129, 130});
    expect_exact(config, {}, 7, even_bounds(7, 7));
  }
}

TEST(GangRange, AddsUpToTheWholeWhateverIsComputedAgain) {
  for (const Recompute recompute : {Recompute::none, Recompute::inner, Recompute::full}) {
    for (const ModelConfig& config : {small_llama(), long_gpt2()}) {
      expect_exact(config, {.threads = 2, .recompute = recompute, .chunk_tokens = 20}, 101, {0, 55, 80, 101});
    }
  }
}

// With bf16 a probability is rounded when its tile is computed, against the maximum so far, and which tiles these are
// depends on the cut. The results are as far from those of fp32 as without a cut.
TEST(GangRange, OfBf16IsAsExactAsTheWhole) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    for (const ModelConfig& config : {small_llama(), long_gpt2()}) {
      const ModelLayout layout = make_layout(config);
      const PackedBatch batch = random_batch({150}, config.vocabulary, 2);
      const ComputeOptions options{.arithmetic = Element::bf16, .recompute = recompute};
      Result exact = whole_result(config, {}, batch);
      Result whole = whole_result(config, options, batch);
      const double error = largest_distance(layout, whole, exact);
      for (const int64_t members : {2, 5}) {
        Result cut = gang_result(config, options, batch, even_bounds(150, members));
        EXPECT_LE(largest_distance(layout, cut, exact), 1.25 * error);
        EXPECT_LE(largest_distance(layout, cut, whole), error);
        EXPECT_NEAR(cut.loss.nats, whole.loss.nats, 5e-4 * whole.loss.nats);  // a quarter of one rounding error
      }
    }
  }
}

TEST(GangRange, LossesAddUpWithoutGradients) {
  const ModelConfig config = small_llama();
  const PackedBatch batch = random_batch({90}, config.vocabulary, 2);
  const BlockValues parameters = formula_parameters(make_layout(config), 3, 0.3);
  PassObserver nobody;
  Transformer model(config);
  const LossSum expected = model.loss(batch, parameters.parameters(), nobody);
  std::vector<LossSum> losses(4);
  run_gang({0, 40, 64, 80, 90}, config, Element::fp32, [&](const GangRange& range, MemoryExchange& exchange) {
    PassObserver no_observer;
    Transformer own(config);
    losses[static_cast<size_t>(range.member)] =
        own.loss(range_of(batch, range), parameters.parameters(), no_observer, &exchange);
  });
  LossSum sum;
  for (const LossSum& loss : losses) {
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
  }
  EXPECT_EQ(sum.tokens, expected.tokens);
  EXPECT_NEAR(sum.nats, expected.nats, 1e-5 * expected.nats);
}

TEST(GangRange, IsTheSameToTheBitEachTime) {
  const ModelConfig config = small_llama();
  const PackedBatch batch = random_batch({120}, config.vocabulary, 2);
  const Result once = gang_result(config, {}, batch, {0, 50, 80, 100, 120});
  const Result again = gang_result(config, {}, batch, {0, 50, 80, 100, 120});
  EXPECT_EQ(once.loss.nats, again.loss.nats);
  for (size_t b = 0; b < once.gradients.blocks(); ++b) EXPECT_EQ(once.gradients.block(b), again.gradients.block(b));
}

thread_local std::vector<std::string>* events = nullptr;

/// The operations of the CPU, of which those of segments leave a trace.
const Operations& recorded_operations() {
  static const Operations kRecorded = [] {
    Operations ops = operations(DeviceKind::cpu);
    ops.attention_segment_forward = [](const Stream& stream, const AttentionShape& shape,
                                       const AttentionSegment& segment, ConstValues q, ConstValues k, ConstValues v,
                                       const AttentionState& state, float* workspace) {
      events->push_back(segment.causal ? "attend own" : "attend earlier");
      operations(DeviceKind::cpu).attention_segment_forward(stream, shape, segment, q, k, v, state, workspace);
    };
    ops.attention_segment_backward = [](const Stream& stream, const AttentionShape& shape,
                                        const AttentionSegment& segment, ConstValues q, ConstValues k, ConstValues v,
                                        ConstValues out, const float* log_sum_exp, const float* d_out, float* dq,
                                        float* dk, float* dv, float* workspace) {
      events->push_back(segment.causal ? "back from own" : "back from earlier");
      operations(DeviceKind::cpu)
          .attention_segment_backward(stream, shape, segment, q, k, v, out, log_sum_exp, d_out, dq, dk, dv, workspace);
    };
    return ops;
  }();
  return kRecorded;
}

class RecordedExchange : public RangeExchange {
 public:
  explicit RecordedExchange(RangeExchange& exchange) : exchange_(exchange) {}
  void send_keys_values(int64_t layer, ConstValues keys_values) override {
    record("send_keys_values", layer);
    exchange_.send_keys_values(layer, keys_values);
  }
  ConstValues wait_earlier(int64_t layer, int64_t member) override {
    record("wait for earlier " + std::to_string(member), layer);
    return exchange_.wait_earlier(layer, member);
  }
  void send_gradients(int64_t layer, int64_t member, const float* d_keys_values) override {
    record("hand back to " + std::to_string(member), layer);
    exchange_.send_gradients(layer, member, d_keys_values);
  }
  const float* wait_later(int64_t layer, int64_t member) override {
    record("wait for later " + std::to_string(member), layer);
    return exchange_.wait_later(layer, member);
  }
  void release(int64_t layer) override {
    record("release", layer);
    exchange_.release(layer);
  }

 private:
  static void record(const std::string& what, int64_t layer) {
    events->push_back(what + " in " + std::to_string(layer));
  }
  RangeExchange& exchange_;
};

std::vector<std::string> events_of_member_2_of_5(Recompute recompute) {
  ModelConfig config = small_llama();
  config.layers = 1;
  const PackedBatch batch = random_batch({60}, config.vocabulary, 2);
  const BlockValues parameters = formula_parameters(make_layout(config), 3, 0.3);
  std::vector<std::string> recorded;
  run_gang({0, 20, 30, 40, 50, 60}, config, Element::fp32, [&](const GangRange& range, MemoryExchange& exchange) {
    std::vector<std::string> own_events;
    events = &own_events;
    RecordedExchange recording(exchange);
    Transformer model(config, {.recompute = recompute, .operations = &recorded_operations()});
    BlockValues gradients(model.layout());
    PassObserver nobody;
    model.gradient(range_of(batch, range), parameters.parameters(), gradients.gradients(), nobody, &recording);
    if (range.member == 2) recorded = own_events;
  });
  return recorded;
}

// What the exchange hides behind: keys and values leave before any attention, and gradients before the first wait for
// those of others.
TEST(GangRange, CallsTheExchangeInTheOrderItPromises) {
  const std::vector<std::string> forward{"attend own", "wait for earlier 1 in 0", "attend earlier",
                                         "wait for earlier 0 in 0", "attend earlier"};
  const std::vector<std::string> backward{
      "wait for earlier 0 in 0", "back from earlier",   "hand back to 0 in 0", "wait for earlier 1 in 0",
      "back from earlier",       "hand back to 1 in 0", "back from own",       "wait for later 3 in 0",
      "wait for later 4 in 0",   "release in 0"};
  for (const Recompute recompute : {Recompute::none, Recompute::inner, Recompute::full}) {
    std::vector<std::string> expected{"send_keys_values in 0"};
    expected.insert(expected.end(), forward.begin(), forward.end());
    if (recompute == Recompute::full) expected.insert(expected.end(), forward.begin(), forward.end());
    expected.insert(expected.end(), backward.begin(), backward.end());
    EXPECT_EQ(events_of_member_2_of_5(recompute), expected);
  }
}

TEST(GangRange, AFailedExchangeLeavesTheModelUsable) {
  class Failing : public RangeExchange {
   public:
    void send_keys_values(int64_t, ConstValues) override {}
    ConstValues wait_earlier(int64_t, int64_t) override { throw Error("member 0 died"); }
    void send_gradients(int64_t, int64_t, const float*) override {}
    const float* wait_later(int64_t, int64_t) override { return nullptr; }
    void release(int64_t) override {}
  };
  const ModelConfig config = small_llama();
  const PackedBatch batch = random_batch({90}, config.vocabulary, 2);
  const BlockValues parameters = formula_parameters(make_layout(config), 3, 0.3);
  Transformer model(config);
  PassObserver nobody;
  BlockValues lost(model.layout());
  Failing failing;
  EXPECT_THROW(model.gradient(range_of(batch, {.bounds = {0, 40, 90}, .member = 1}), parameters.parameters(),
                              lost.gradients(), nobody, &failing),
               Error);
  Result result(model.layout());
  result.loss = model.gradient(batch, parameters.parameters(), result.gradients.gradients(), nobody);
  const Result expected = whole_result(config, {}, batch);
  EXPECT_EQ(result.loss.nats, expected.loss.nats);
  for (size_t b = 0; b < expected.gradients.blocks(); ++b) {
    EXPECT_EQ(result.gradients.block(b), expected.gradients.block(b));
  }
}

TEST(GangRange, ThatCannotBeComputedIsRefused) {
  const ModelConfig config = small_llama();
  const PackedBatch whole = random_batch({90}, config.vocabulary, 2);
  const BlockValues parameters = formula_parameters(make_layout(config), 3, 0.3);
  GangMemory memory;
  const GangRange range{.bounds = {0, 40, 90}, .member = 0};
  MemoryExchange exchange(memory, range, config, Element::fp32, {});
  Transformer model(config);
  PassObserver nobody;
  const auto loss = [&](const PackedBatch& batch, RangeExchange* with) {
    return model.loss(batch, parameters.parameters(), nobody, with);
  };
  PackedBatch part = range_of(whole, range);
  EXPECT_THROW(loss(part, nullptr), Error);
  EXPECT_THROW(loss(whole, &exchange), Error);
  for (const GangRange& wrong :
       {GangRange{.bounds = {0, 41, 90}}, GangRange{.bounds = {0, 40, 40, 90}}, GangRange{.bounds = {1, 41, 90}},
        GangRange{.bounds = {0, 40}, .member = 1}, GangRange{.bounds = {0, 40}, .member = -1}, GangRange{}}) {
    part.range = wrong;
    EXPECT_THROW(loss(part, &exchange), Error) << testing::PrintToString(wrong.bounds);
  }
  part.range = range;
  part.offsets = {0, 20, 40};
  EXPECT_THROW(loss(part, &exchange), Error);
  std::vector<float> logits;
  EXPECT_THROW(model.logits(range_of(whole, range), parameters.parameters(), logits), Error);

  const ModelConfig short_positions = small_gpt2();  // 20
  const BlockValues its_parameters = formula_parameters(make_layout(short_positions), 3, 0.3);
  Transformer gpt2(short_positions);
  const PackedBatch beyond =
      range_of(random_batch({21}, short_positions.vocabulary, 2), {.bounds = {0, 15, 21}, .member = 1});
  EXPECT_THROW(gpt2.loss(beyond, its_parameters.parameters(), nobody, &exchange), Error);
}

TEST(GangRange, NeedsTheBuffersOfItsTokensAndTheKeysAndValuesBefore) {
  ModelConfig config = small_llama();
  config.layers = 8;
  for (const Recompute recompute : {Recompute::none, Recompute::inner, Recompute::full}) {
    Transformer model(config, {.recompute = recompute, .chunk_tokens = 64});
    const int64_t whole = model.buffer_bytes(8000, 8000);
    const auto bytes = [&](int64_t member) {
      return model.buffer_bytes(GangRange{.bounds = even_bounds(8000, 4), .member = member});
    };
    const int64_t kv_bytes = config.layers * 2 * config.kv_heads * (config.width / config.heads) * 4;
    EXPECT_LT(bytes(0), whole / 3);
    EXPECT_GE(bytes(3) - bytes(1), 4000 * kv_bytes);
    EXPECT_LT(bytes(3), whole / 3 + 6000 * kv_bytes);
  }
}

}  // namespace
}  // namespace hat::test
