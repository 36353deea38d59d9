// The gradient of every tensor against finite differences of the loss: a witness that shares nothing with PyTorch.
#include <gtest/gtest.h>

#include <string>

#include "model_support.hpp"

namespace hat::test {
namespace {

ModelConfig config_of(const std::string& name) {
  if (name == "gpt2_tied") return small_gpt2();
  if (name == "gpt2_untied") {
    ModelConfig config = small_gpt2();
    config.tied = false;
    return config;
  }
  ModelConfig config = small_llama();
  config.tied = name == "llama_tied";
  return config;
}

class FiniteDifferences : public testing::TestWithParam<std::string> {};

TEST_P(FiniteDifferences, AgreeAlongTheGradientOfEveryTensor) {
  Transformer model(config_of(GetParam()));
  const ModelLayout& layout = model.layout();
  BlockValues parameters = formula_parameters(layout, 3, 0.3);
  const PackedBatch batch = random_batch({7, 1, 12}, model.config().vocabulary, 2);
  BlockValues gradients(layout);
  PassObserver nobody;
  model.gradient(batch, parameters.parameters(), gradients.gradients(), nobody);

  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    for (const TensorSpec& tensor : layout.blocks[b].tensors) {
      const std::string name = layout.blocks[b].name + "." + tensor.name;
      const std::span<float> values = parameters.tensor(b, tensor);
      const std::span<const float> gradient = gradients.tensor(b, tensor);
      double norm = 0.0;
      for (const float g : gradient) norm += static_cast<double>(g) * static_cast<double>(g);
      norm = std::sqrt(norm);
      if (tensor.name == "k.bias") continue;  // mathematically zero (test_model.cpp)
      ASSERT_GT(norm, 0.05) << name;

      // The slope along the gradient is its norm. The step is small against the curvature and large against fp32
      // rounding of the loss; the fourth-order formula allows both.
      const std::vector<float> start(values.begin(), values.end());
      const double step = 0.02;
      const auto loss_at = [&](double distance) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] =
              static_cast<float>(static_cast<double>(start[i]) + distance * static_cast<double>(gradient[i]) / norm);
        }
        return model.loss(batch, parameters.parameters(), nobody).nats;
      };
      const double near = loss_at(step) - loss_at(-step);
      const double far = loss_at(2 * step) - loss_at(-2 * step);
      const double slope = (8 * near - far) / (12 * step);
      EXPECT_NEAR(slope, norm, 2e-3 * norm) << name;
      std::copy(start.begin(), start.end(), values.begin());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FiniteDifferences,
                         testing::Values("llama_untied", "llama_tied", "gpt2_tied", "gpt2_untied"),
                         [](const auto& info) { return info.param; });

TEST(Gradient, IsAddedToWhatIsThere) {
  Transformer model(small_llama());
  const BlockValues parameters = formula_parameters(model.layout(), 3, 0.3);
  const PackedBatch batch = random_batch({7, 3}, 61, 2);
  PassObserver nobody;
  BlockValues once(model.layout());
  model.gradient(batch, parameters.parameters(), once.gradients(), nobody);
  BlockValues twice(model.layout());
  model.gradient(batch, parameters.parameters(), twice.gradients(), nobody);
  model.gradient(batch, parameters.parameters(), twice.gradients(), nobody);
  for (size_t b = 0; b < once.blocks(); ++b) {
    for (float& g : once.block(b)) g *= 2.0f;
    EXPECT_LE(relative_distance(twice.block(b), once.block(b)), 1e-6) << b;
  }
}

TEST(Gradient, OfPositionsWithoutTargetIsNothing) {
  Transformer model(small_llama());
  const BlockValues parameters = formula_parameters(model.layout(), 3, 0.3);
  PackedBatch batch = random_batch({7}, 61, 2);
  batch.targets.assign(batch.targets.size(), -1);
  PassObserver nobody;
  BlockValues gradients(model.layout());
  const LossSum loss = model.gradient(batch, parameters.parameters(), gradients.gradients(), nobody);
  EXPECT_EQ(loss.tokens, 0);
  EXPECT_EQ(loss.nats, 0.0);
  for (size_t b = 0; b < gradients.blocks(); ++b) {
    for (const float g : gradients.block(b)) ASSERT_EQ(g, 0.0f);
  }
}

}  // namespace
}  // namespace hat::test
