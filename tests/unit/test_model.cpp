// Logits, loss and the gradient of every tensor against PyTorch in float64 (fixtures/make_reference.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "hat/core/error.hpp"
#include "model_support.hpp"

namespace hat::test {
namespace {

constexpr double kTolerance = 1e-5;

struct Reference {
  nlohmann::json index;
  std::vector<float> data;

  Reference() {
    const std::string folder = HAT_FIXTURES_DIR;
    std::ifstream(folder + "/reference.json") >> index;
    std::ifstream file(folder + "/reference.bin", std::ios::binary | std::ios::ate);
    data.resize(static_cast<size_t>(file.tellg()) / sizeof(float));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(float)));
  }

  std::span<const float> values(const nlohmann::json& entry) const {
    return {data.data() + entry.at("begin").get<size_t>(), entry.at("size").get<size_t>()};
  }

  ModelConfig config(const std::string& name) const {
    const auto& model = index.at("models").at(name).at("config");
    ModelConfig config;
    config.family = model.at("family") == "gpt2" ? ModelFamily::gpt2 : ModelFamily::llama;
    config.width = model.at("width");
    config.layers = model.at("layers");
    config.heads = model.at("heads");
    config.kv_heads = model.at("kv_heads");
    config.mlp_width = model.at("mlp_width");
    config.tied = model.at("tied");
    config.vocabulary = index.at("vocabulary");
    config.max_length = index.at("max_length");
    config.norm_epsilon = index.at("norm_epsilon");
    config.rope_base = index.at("rope_base");
    return config;
  }

  PackedBatch batch() const {
    PackedBatch batch;
    batch.inputs = index.at("inputs").get<std::vector<int32_t>>();
    batch.targets = index.at("targets").get<std::vector<int32_t>>();
    batch.offsets = {0};
    for (const int32_t length : index.at("lengths")) batch.offsets.push_back(batch.offsets.back() + length);
    return batch;
  }
};

double norm(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

class AgainstPyTorch : public testing::TestWithParam<std::string> {};

/// What may differ, as norm of the difference over norm.
struct Tolerances {
  double logits;
  double loss;
  double gradient;
};

/// Where a constant added to every key moves all scores of a row alike, the gradient is zero but for rounding; it is
/// held against that of the values' bias.
double gradient_distance(const Reference& reference, const nlohmann::json& gradients, BlockValues& found, size_t block,
                         const BlockSpec& spec, const TensorSpec& tensor) {
  const std::span<const float> values = reference.values(gradients.at(spec.name + "." + tensor.name));
  EXPECT_EQ(static_cast<int64_t>(values.size()), tensor.size()) << spec.name << tensor.name;
  if (tensor.name != "k.bias") return relative_distance(found.tensor(block, tensor), values);
  return norm(found.tensor(block, tensor)) / norm(reference.values(gradients.at(spec.name + ".v.bias")));
}

void expect_agreement(const Reference& reference, const std::string& name, const ComputeOptions& options,
                      const Tolerances& tolerances) {
  const auto& expected = reference.index.at("models").at(name);
  Transformer model(reference.config(name), options);
  const ModelLayout& layout = model.layout();
  const BlockValues parameters =
      formula_parameters(layout, reference.index.at("seed"), reference.index.at("amplitude"));
  const PackedBatch batch = reference.batch();

  std::vector<float> logits;
  model.logits(batch, parameters.parameters(), logits);
  ASSERT_EQ(logits.size(), expected.at("logits").at("size").get<size_t>());
  EXPECT_LE(relative_distance(logits, reference.values(expected.at("logits"))), tolerances.logits);

  const double nats = expected.at("nats");
  PassObserver observer;
  const LossSum loss = model.loss(batch, parameters.parameters(), observer);
  EXPECT_NEAR(loss.nats, nats, tolerances.loss * nats);
  EXPECT_EQ(loss.tokens, static_cast<int64_t>(batch.inputs.size()) - 1);  // one target is negative

  BlockValues gradients(layout);
  const LossSum again = model.gradient(batch, parameters.parameters(), gradients.gradients(), observer);
  EXPECT_NEAR(again.nats, nats, tolerances.loss * nats);
  EXPECT_EQ(again.tokens, loss.tokens);
  size_t compared = 0;
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    for (const TensorSpec& tensor : layout.blocks[b].tensors) {
      EXPECT_LE(gradient_distance(reference, expected.at("gradients"), gradients, b, layout.blocks[b], tensor),
                tolerances.gradient)
          << layout.blocks[b].name << "." << tensor.name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.at("gradients").size());
}

TEST_P(AgainstPyTorch, LogitsLossAndEveryGradient) {
  const Reference reference;
  constexpr Tolerances kTolerances{.logits = kTolerance, .loss = kTolerance, .gradient = kTolerance};
  for (const int threads : {1, 2}) expect_agreement(reference, GetParam(), {.threads = threads}, kTolerances);
  for (const Recompute recompute : {Recompute::none, Recompute::inner, Recompute::full}) {
    // Chunks that end inside documents, and one that holds several.
    for (const int64_t chunk : {1, 4, 10}) {
      expect_agreement(reference, GetParam(), {.recompute = recompute, .chunk_tokens = chunk}, kTolerances);
    }
  }
}

// PyTorch's own bf16 autocast, held against the same float64 values, needs this much (fixtures/make_reference.py).
TEST_P(AgainstPyTorch, InBf16AsCloselyAsPyTorchsAutocast) {
  const Reference reference;
  const auto& autocast = reference.index.at("models").at(GetParam()).at("bf16_autocast");
  Tolerances tolerances{.logits = autocast.at("logits"), .loss = autocast.at("loss"), .gradient = 0.0};
  for (const auto& distance : autocast.at("gradients")) {
    tolerances.gradient = std::max(tolerances.gradient, distance.get<double>());
  }
  for (const int threads : {1, 2}) {
    expect_agreement(reference, GetParam(), {.threads = threads, .arithmetic = Element::bf16}, tolerances);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstPyTorch, testing::Values("llama_grouped", "llama_tied", "gpt2_tied"),
                         [](const auto& info) { return info.param; });

/// Writes down the calls.
class Recorder : public PassObserver {
 public:
  void before_forward(int64_t block) override { calls.push_back("forward " + std::to_string(block)); }
  void before_backward() override { calls.emplace_back("backward"); }
  void after_backward(int64_t block) override { calls.push_back("done " + std::to_string(block)); }
  std::vector<std::string> calls;
};

TEST(PassObserverCalls, ComeInTheOrderOfThePass) {
  for (const bool tied : {false, true}) {
    ModelConfig config = small_llama();
    config.tied = tied;
    Transformer model(config);
    const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
    const PackedBatch batch = random_batch({4, 2}, config.vocabulary, 1);
    BlockValues gradients(model.layout());
    Recorder recorder;
    model.gradient(batch, parameters.parameters(), gradients.gradients(), recorder);
    EXPECT_EQ(recorder.calls,
              (std::vector<std::string>{"forward 0", "forward 1", "forward 2", "forward 3", "forward 4", "forward 5",
                                        "backward", "done 5", "done 4", "done 3", "done 2", "done 1", "done 0"}));
    recorder.calls.clear();
    model.loss(batch, parameters.parameters(), recorder);
    EXPECT_EQ(recorder.calls,
              (std::vector<std::string>{"forward 0", "forward 1", "forward 2", "forward 3", "forward 4", "forward 5"}));
  }
}

/// Hands out a block's parameters at its first use only, and checks that a finished gradient does not change any more.
class LatePull : public PassObserver {
 public:
  LatePull(const BlockValues& source, ParameterPointers& pointers, BlockValues& gradients)
      : source_(source), pointers_(pointers), gradients_(gradients), finished_(source.blocks()) {}
  void before_forward(int64_t block) override {
    const auto b = static_cast<size_t>(block);
    pointers_[b] = source_.block(b).data();
  }
  void after_backward(int64_t block) override {
    const auto b = static_cast<size_t>(block);
    finished_[b] = gradients_.block(b);
  }
  const std::vector<float>& finished(size_t block) const { return finished_[block]; }

 private:
  const BlockValues& source_;
  ParameterPointers& pointers_;
  BlockValues& gradients_;
  std::vector<std::vector<float>> finished_;
};

TEST(PassObserverCalls, ParametersMayArriveLateAndGradientsAreFinalWhenAnnounced) {
  for (const ModelConfig& config : {small_llama(), small_gpt2()}) {
    Transformer model(config);
    const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
    const PackedBatch batch = random_batch({4, 2, 9}, config.vocabulary, 1);
    ParameterPointers pointers(parameters.blocks(), nullptr);
    BlockValues gradients(model.layout());
    LatePull observer(parameters, pointers, gradients);
    model.gradient(batch, pointers, gradients.gradients(), observer);

    BlockValues expected(model.layout());
    PassObserver nobody;
    model.gradient(batch, parameters.parameters(), expected.gradients(), nobody);
    for (size_t b = 0; b < expected.blocks(); ++b) {
      EXPECT_EQ(observer.finished(b), expected.block(b)) << b;
      EXPECT_EQ(gradients.block(b), expected.block(b)) << b;
    }
  }
}

TEST(Transformer, RefusesBatchesThatContradictThemselves) {
  Transformer model(small_gpt2());
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  PassObserver nobody;
  const auto loss = [&](const PackedBatch& batch) { return model.loss(batch, parameters.parameters(), nobody); };
  const PackedBatch good = random_batch({4, 2}, 61, 1);
  EXPECT_NO_THROW(loss(good));

  PackedBatch batch = good;
  batch.inputs[2] = 61;
  EXPECT_THROW(loss(batch), Error);
  batch = good;
  batch.inputs[2] = -1;
  EXPECT_THROW(loss(batch), Error);
  batch = good;
  batch.targets[2] = 61;
  EXPECT_THROW(loss(batch), Error);
  batch = good;
  batch.targets.pop_back();
  EXPECT_THROW(loss(batch), Error);
  batch = good;
  batch.offsets = {0, 5, 4, 6};
  EXPECT_THROW(loss(batch), Error);
  batch = good;
  batch.offsets = {0, 4};
  EXPECT_THROW(loss(batch), Error);
  batch = good;
  batch.offsets.clear();
  EXPECT_THROW(loss(batch), Error);
  EXPECT_THROW(loss(random_batch({21}, 61, 1)), Error);  // above the learned positions
}

TEST(Transformer, TakesEmptyBatchesAndEmptyDocuments) {
  Transformer model(small_llama());
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  PassObserver nobody;
  PackedBatch empty;
  empty.offsets = {0};
  BlockValues gradients(model.layout());
  const LossSum loss = model.gradient(empty, parameters.parameters(), gradients.gradients(), nobody);
  EXPECT_EQ(loss.tokens, 0);
  EXPECT_EQ(loss.nats, 0.0);
  for (size_t b = 0; b < gradients.blocks(); ++b) {
    EXPECT_TRUE(std::all_of(gradients.block(b).begin(), gradients.block(b).end(), [](float g) { return g == 0.0f; }));
  }
  const PackedBatch gaps = random_batch({0, 4, 0, 2, 0}, 61, 1);
  const PackedBatch whole = random_batch({4, 2}, 61, 1);
  EXPECT_EQ(model.loss(gaps, parameters.parameters(), nobody).nats,
            model.loss(whole, parameters.parameters(), nobody).nats);
}

TEST(Transformer, CountsFlop) {
  ModelConfig config = small_llama();
  const Transformer untied(config);
  // 2 layers of attention (24 + 2 24 24 + 2 12 24) and MLP (24 + 3 40 24), head (24 + 61 24).
  const double parameters = 2 * (24 + 1152 + 576 + 24 + 2880) + 24 + 1464;
  EXPECT_EQ(untied.flop(10), 6 * parameters * 10 + 6.0 * 10 * 10 * 24 * 2);
  config.tied = true;
  const Transformer tied(config);
  EXPECT_EQ(tied.flop(10), untied.flop(10));  // the output matrix counts wherever it is kept
  EXPECT_EQ(untied.flop(0), 0.0);
}

}  // namespace
}  // namespace hat::test
