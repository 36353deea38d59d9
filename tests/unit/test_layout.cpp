#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "hat/core/error.hpp"
#include "model_support.hpp"

namespace hat::test {
namespace {

std::vector<std::string> tensor_names(const BlockSpec& block) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : block.tensors) names.push_back(tensor.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Layout, LlamaBlocks) {
  const ModelLayout layout = make_layout(small_llama());
  ASSERT_EQ(layout.blocks.size(), 6U);
  EXPECT_EQ(layout.blocks[0].name, "embedding");
  EXPECT_EQ(layout.blocks[1].name, "layers.0.attention");
  EXPECT_EQ(layout.blocks[4].name, "layers.1.mlp");
  EXPECT_EQ(layout.blocks[5].name, "head");
  EXPECT_EQ(tensor_names(layout.blocks[0]), (Names{"token.weight"}));
  EXPECT_EQ(tensor_names(layout.blocks[1]), (Names{"norm.weight", "q.weight", "k.weight", "v.weight", "o.weight"}));
  EXPECT_EQ(tensor_names(layout.blocks[2]), (Names{"norm.weight", "gate.weight", "up.weight", "down.weight"}));
  EXPECT_EQ(tensor_names(layout.blocks[5]), (Names{"norm.weight", "output.weight"}));
  EXPECT_EQ(layout.blocks[1].tensors[2].rows, 12);  // 2 key/value heads of size 6
  EXPECT_EQ(layout.blocks[1].tensors[2].columns, 24);
}

TEST(Layout, Gpt2Blocks) {
  const ModelLayout layout = make_layout(small_gpt2());
  EXPECT_EQ(tensor_names(layout.blocks[0]), (Names{"token.weight", "position.weight"}));
  EXPECT_EQ(tensor_names(layout.blocks[1]), (Names{"norm.weight", "norm.bias", "q.weight", "k.weight", "v.weight",
                                                   "q.bias", "k.bias", "v.bias", "o.weight", "o.bias"}));
  EXPECT_EQ(tensor_names(layout.blocks[2]),
            (Names{"norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias"}));
  EXPECT_EQ(tensor_names(layout.blocks[5]), (Names{"norm.weight", "norm.bias"}));  // tied
}

TEST(Layout, TensorsFillTheirBlocksAndMatricesDecay) {
  for (const ModelConfig& config : {small_llama(), small_gpt2()}) {
    const ModelLayout layout = make_layout(config);
    int64_t total = 0;
    for (const BlockSpec& block : layout.blocks) {
      int64_t end = 0;
      for (const TensorSpec& tensor : block.tensors) {
        EXPECT_EQ(tensor.offset, end) << block.name << "." << tensor.name;
        end += tensor.size();
        EXPECT_EQ(tensor.is_vector, tensor.columns == 1);
        EXPECT_EQ(tensor.decay, !tensor.is_vector);
        const bool in_layer = block.name.rfind("layers.", 0) == 0;
        EXPECT_EQ(tensor.orthogonal, in_layer && !tensor.is_vector) << block.name << "." << tensor.name;
      }
      EXPECT_EQ(block.size, end);
      total += end;
    }
    EXPECT_EQ(layout.size(), total);
  }
}

TEST(Layout, UsualSizesWhereTheDeckLeavesThemOpen) {
  ModelConfig config = small_llama();
  config.kv_heads = 0;
  config.mlp_width = 0;
  config.width = 128;
  EXPECT_EQ(kv_heads(config), 4);
  EXPECT_EQ(mlp_width(config), 352);
  config.family = ModelFamily::gpt2;
  EXPECT_EQ(mlp_width(config), 512);
}

TEST(Layout, StartValuesDoNotDependOnHowTheyAreSplit) {
  for (const ModelConfig& config : {small_llama(), small_gpt2()}) {
    const ModelLayout layout = make_layout(config);
    for (size_t b = 0; b < layout.blocks.size(); ++b) {
      const int64_t size = layout.blocks[b].size;
      std::vector<float> whole(static_cast<size_t>(size), -7.0f);
      initialize(layout, static_cast<int64_t>(b), 0, whole.data(), size, 11);
      for (const int64_t part : {int64_t{1}, int64_t{7}, int64_t{100}, size}) {
        std::vector<float> pieces(static_cast<size_t>(size), -7.0f);
        for (int64_t begin = 0; begin < size; begin += part) {
          initialize(layout, static_cast<int64_t>(b), begin, pieces.data() + begin, std::min(part, size - begin), 11);
        }
        EXPECT_EQ(pieces, whole) << layout.blocks[b].name << " in parts of " << part;
      }
      std::vector<float> guarded(static_cast<size_t>(size) + 2, -7.0f);
      initialize(layout, static_cast<int64_t>(b), 0, guarded.data() + 1, size, 11);
      EXPECT_EQ(guarded.front(), -7.0f);
      EXPECT_EQ(guarded.back(), -7.0f);
    }
  }
}

TEST(Layout, StartValuesHaveTheirDistribution) {
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::gpt2}) {
    ModelConfig config;
    config.family = family;
    config.vocabulary = 257;
    const ModelLayout layout = make_layout(config);
    std::set<float> firsts;
    size_t matrices = 0;
    for (size_t b = 0; b < layout.blocks.size(); ++b) {
      std::vector<float> values(static_cast<size_t>(layout.blocks[b].size));
      initialize(layout, static_cast<int64_t>(b), 0, values.data(), layout.blocks[b].size, 3);
      for (const TensorSpec& tensor : layout.blocks[b].tensors) {
        const std::string name = layout.blocks[b].name + "." + tensor.name;
        const float* first = values.data() + tensor.offset;
        double sum = 0.0;
        double squares = 0.0;
        for (int64_t i = 0; i < tensor.size(); ++i) {
          sum += static_cast<double>(first[i]);
          squares += static_cast<double>(first[i]) * static_cast<double>(first[i]);
        }
        const auto count = static_cast<double>(tensor.size());
        if (tensor.is_vector) {
          EXPECT_EQ(sum, tensor.name == "norm.weight" ? count : 0.0) << name;
          EXPECT_EQ(squares, tensor.name == "norm.weight" ? count : 0.0) << name;
          continue;
        }
        double expected = 0.02;
        if (family == ModelFamily::llama && b > 0) {
          expected = 0.5 / std::sqrt(static_cast<double>(tensor.columns));
        } else if (tensor.name == "o.weight" || tensor.name == "down.weight") {
          expected = 0.02 / std::sqrt(8.0);
        }
        EXPECT_NEAR(std::sqrt(squares / count), expected, 0.03 * expected) << name;
        EXPECT_NEAR(sum / count, 0.0, 5.0 * expected / std::sqrt(count)) << name;
        firsts.insert(first[0]);
        ++matrices;
      }
    }
    EXPECT_EQ(firsts.size(), matrices);  // no two tensors have the same numbers
  }
}

TEST(Layout, SeedsDiffer) {
  const ModelLayout layout = make_layout(small_llama());
  std::vector<float> a(10);
  std::vector<float> b(10);
  initialize(layout, 0, 0, a.data(), 10, 1);
  initialize(layout, 0, 0, b.data(), 10, 2);
  EXPECT_NE(a, b);
}

struct BadCase {
  std::string name;
  std::function<void(ModelConfig&)> spoil;
  std::string message;
};

class BadSizes : public testing::TestWithParam<BadCase> {};

TEST_P(BadSizes, AreRefusedWithKeyAndNumbers) {
  ModelConfig config = small_llama();
  GetParam().spoil(config);
  try {
    make_layout(config);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()), GetParam().message);
  }
}

const BadCase kBadCases[] = {
    {"width_zero", [](ModelConfig& c) { c.width = 0; }, "model.width: must be at least 1, not 0"},
    {"layers_negative", [](ModelConfig& c) { c.layers = -2; }, "model.layers: must be at least 1, not -2"},
    {"layers_many", [](ModelConfig& c) { c.layers = 1000000; }, "model.layers: 1000000 is above the limit of 10000"},
    {"heads_zero", [](ModelConfig& c) { c.heads = 0; }, "model.heads: must be at least 1, not 0"},
    {"heads_do_not_divide", [](ModelConfig& c) { c.heads = 5; }, "model.heads: 5 does not divide width 24"},
    {"odd_head_size", [](ModelConfig& c) { c.heads = 8; },
     "model.heads: head size 3 (width 24 / heads 8) must be even"},
    {"kv_heads_negative", [](ModelConfig& c) { c.kv_heads = -1; },
     "model.kv_heads: must be at least 1, or 0 for heads, not -1"},
    {"kv_heads_do_not_divide", [](ModelConfig& c) { c.kv_heads = 3; }, "model.kv_heads: 3 does not divide heads 4"},
    {"gpt2_kv_heads", [](ModelConfig& c) { c.family = ModelFamily::gpt2; },
     "model.kv_heads: 2 with 4 heads: the gpt2 family has as many key/value heads as heads"},
    {"mlp_width_negative", [](ModelConfig& c) { c.mlp_width = -8; },
     "model.mlp_width: must be at least 1, or 0 for the usual one, not -8"},
    {"vocabulary_unset", [](ModelConfig& c) { c.vocabulary = 0; }, "model.vocabulary: must be at least 1, not 0"},
    {"vocabulary_huge", [](ModelConfig& c) { c.vocabulary = int64_t{1} << 31; },
     "model.vocabulary: 2147483648 is above the limit of 2147483647"},
    {"max_length_zero", [](ModelConfig& c) { c.max_length = 0; }, "model.max_length: must be at least 1, not 0"},
    {"epsilon_zero", [](ModelConfig& c) { c.norm_epsilon = 0; }, "model.norm_epsilon: must be above 0, not 0"},
    {"rope_base_one", [](ModelConfig& c) { c.rope_base = 1; }, "model.rope_base: must be above 1, not 1"},
    {"bytes_overflow",
     [](ModelConfig& c) {
       c.width = int64_t{1} << 30;
       c.vocabulary = 2147483647;
     },
     "model.layers: the model is larger than this program can count"},
    {"block_overflows",
     [](ModelConfig& c) {
       c.width = 2147483646;
       c.heads = 1;
       c.kv_heads = 1;
     },
     "model.width: tensor layers.0.attention.v.weight of 2147483646 x 2147483646 is larger than this program can "
     "count"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadSizes, testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hat::test
