#include "hat/model/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "hat/core/error.hpp"
#include "hat/core/random.hpp"

namespace hat {

namespace {

/// Start values of the Llama family: embeddings 0.02, matrices 0.5 / sqrt(fan in), as in the delay study (facts.md).
/// GPT-2: 0.02 everywhere, and the matrices that write into the residual stream 0.02 / sqrt(2 layers) (Radford et al.
/// 2019).
double matrix_std(const ModelConfig& config, int64_t fan_in) {
  return config.family == ModelFamily::gpt2 ? 0.02 : 0.5 / std::sqrt(static_cast<double>(fan_in));
}

double residual_std(const ModelConfig& config, int64_t fan_in) {
  return config.family == ModelFamily::gpt2 ? 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers))
                                            : matrix_std(config, fan_in);
}

void require_positive(std::string_view key, int64_t value) {
  if (value <= 0) throw KeyError(fmt::format("model.{}", key), fmt::format("must be at least 1, not {}", value));
}

// Tokens, positions and rows of a tensor are numbered in 32 bits; a layout with more layers than this is a mistake.
constexpr int64_t kMaximumSize = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaximumLayers = 10000;

void require_at_most(std::string_view key, int64_t value, int64_t limit) {
  if (value > limit)
    throw KeyError(fmt::format("model.{}", key), fmt::format("{} is above the limit of {}", value, limit));
}

void check_heads(const ModelConfig& config) {
  require_positive("heads", config.heads);
  if (config.kv_heads < 0) {
    throw KeyError("model.kv_heads", fmt::format("must be at least 1, or 0 for heads, not {}", config.kv_heads));
  }
  if (config.width % config.heads != 0) {
    throw KeyError("model.heads", fmt::format("{} does not divide width {}", config.heads, config.width));
  }
  const int64_t head_size = config.width / config.heads;
  if (head_size % 2 != 0) {
    throw KeyError("model.heads", fmt::format("head size {} (width {} / heads {}) must be even", head_size,
                                              config.width, config.heads));
  }
  if (config.heads % kv_heads(config) != 0) {
    throw KeyError("model.kv_heads", fmt::format("{} does not divide heads {}", config.kv_heads, config.heads));
  }
  if (config.family == ModelFamily::gpt2 && kv_heads(config) != config.heads) {
    throw KeyError("model.kv_heads",
                   fmt::format("{} with {} heads: the gpt2 family has as many key/value heads as heads",
                               config.kv_heads, config.heads));
  }
}

void check(const ModelConfig& config) {
  require_positive("width", config.width);
  require_positive("layers", config.layers);
  require_positive("vocabulary", config.vocabulary);
  require_positive("max_length", config.max_length);
  require_at_most("vocabulary", config.vocabulary, kMaximumSize);
  require_at_most("max_length", config.max_length, kMaximumSize);
  require_at_most("layers", config.layers, kMaximumLayers);
  require_at_most("width", config.width, kMaximumSize);
  require_at_most("mlp_width", config.mlp_width, kMaximumSize);
  if (config.mlp_width < 0) {
    throw KeyError("model.mlp_width",
                   fmt::format("must be at least 1, or 0 for the usual one, not {}", config.mlp_width));
  }
  if (!(config.norm_epsilon > 0.0) || !std::isfinite(config.norm_epsilon)) {
    throw KeyError("model.norm_epsilon", fmt::format("must be above 0, not {}", config.norm_epsilon));
  }
  if (!(config.rope_base > 1.0) || !std::isfinite(config.rope_base)) {
    throw KeyError("model.rope_base", fmt::format("must be above 1, not {}", config.rope_base));
  }
  check_heads(config);
}

/// Lays tensors one behind the other.
class BlockBuilder {
 public:
  explicit BlockBuilder(std::string name) { block_.name = std::move(name); }

  void vector(std::string name, int64_t size, InitKind init) {
    TensorSpec tensor;
    tensor.rows = size;
    tensor.is_vector = true;
    tensor.init = init;
    append(std::move(name), std::move(tensor));
  }

  /// (out, in). Weight decay applies to it.
  void matrix(std::string name, int64_t rows, int64_t columns, double init_std, bool hidden) {
    TensorSpec tensor;
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.decay = true;
    tensor.orthogonal = hidden;
    tensor.init = InitKind::normal;
    tensor.init_std = init_std;
    append(std::move(name), std::move(tensor));
  }

  BlockSpec take() { return std::move(block_); }

 private:
  void append(std::string name, TensorSpec tensor) {
    int64_t size = 0;
    if (__builtin_mul_overflow(tensor.rows, tensor.columns, &size) ||
        __builtin_add_overflow(block_.size, size, &block_.size)) {
      throw KeyError("model.width", fmt::format("tensor {}.{} of {} x {} is larger than this program can count",
                                                block_.name, name, tensor.rows, tensor.columns));
    }
    tensor.name = std::move(name);
    tensor.offset = block_.size - size;
    block_.tensors.push_back(std::move(tensor));
  }

  BlockSpec block_;
};

BlockSpec embedding_block(const ModelConfig& config) {
  BlockBuilder block("embedding");
  block.matrix("token.weight", config.vocabulary, config.width, 0.02, false);
  if (config.family == ModelFamily::gpt2) {
    block.matrix("position.weight", config.max_length, config.width, 0.02, false);
  }
  return block.take();
}

/// q, k and v are neighbours, so that one product with all their rows computes the three.
BlockSpec attention_block(const ModelConfig& config, int64_t layer) {
  const bool gpt2 = config.family == ModelFamily::gpt2;
  const int64_t C = config.width;
  const int64_t kv_width = C / config.heads * kv_heads(config);
  const double std = matrix_std(config, C);
  BlockBuilder block(fmt::format("layers.{}.attention", layer));
  block.vector("norm.weight", C, InitKind::ones);
  if (gpt2) block.vector("norm.bias", C, InitKind::zeros);
  block.matrix("q.weight", C, C, std, true);
  block.matrix("k.weight", kv_width, C, std, true);
  block.matrix("v.weight", kv_width, C, std, true);
  if (gpt2) {
    block.vector("q.bias", C, InitKind::zeros);
    block.vector("k.bias", kv_width, InitKind::zeros);
    block.vector("v.bias", kv_width, InitKind::zeros);
  }
  block.matrix("o.weight", C, C, residual_std(config, C), true);
  if (gpt2) block.vector("o.bias", C, InitKind::zeros);
  return block.take();
}

/// gate and up are neighbours, as q, k and v above.
BlockSpec mlp_block(const ModelConfig& config, int64_t layer) {
  const bool gpt2 = config.family == ModelFamily::gpt2;
  const int64_t C = config.width;
  const int64_t F = mlp_width(config);
  BlockBuilder block(fmt::format("layers.{}.mlp", layer));
  block.vector("norm.weight", C, InitKind::ones);
  if (gpt2) block.vector("norm.bias", C, InitKind::zeros);
  if (!gpt2) block.matrix("gate.weight", F, C, matrix_std(config, C), true);
  block.matrix("up.weight", F, C, matrix_std(config, C), true);
  if (gpt2) block.vector("up.bias", F, InitKind::zeros);
  block.matrix("down.weight", C, F, residual_std(config, F), true);
  if (gpt2) block.vector("down.bias", C, InitKind::zeros);
  return block.take();
}

BlockSpec head_block(const ModelConfig& config) {
  BlockBuilder block("head");
  block.vector("norm.weight", config.width, InitKind::ones);
  if (config.family == ModelFamily::gpt2) block.vector("norm.bias", config.width, InitKind::zeros);
  if (!config.tied) {
    block.matrix("output.weight", config.vocabulary, config.width, matrix_std(config, config.width), false);
  }
  return block.take();
}

void check_total(const ModelLayout& layout) {
  int64_t total = 0;
  int64_t bytes = 0;
  for (const BlockSpec& block : layout.blocks) {
    if (__builtin_add_overflow(total, block.size, &total) ||
        __builtin_mul_overflow(total, static_cast<int64_t>(sizeof(float)), &bytes)) {
      throw KeyError("model.layers", "the model is larger than this program can count");
    }
  }
}

}  // namespace

int64_t ModelLayout::size() const {
  int64_t total = 0;
  for (const BlockSpec& block : blocks) total += block.size;
  return total;
}

int64_t kv_heads(const ModelConfig& config) { return config.kv_heads > 0 ? config.kv_heads : config.heads; }

int64_t mlp_width(const ModelConfig& config) {
  if (config.mlp_width > 0) return config.mlp_width;
  if (config.family == ModelFamily::gpt2) return 4 * config.width;
  return (8 * config.width / 3 + 31) / 32 * 32;
}

int64_t key_value_elements(const ModelConfig& config) {
  return config.layers * 2 * kv_heads(config) * (config.width / config.heads);
}

ModelLayout make_layout(const ModelConfig& config) {
  check(config);
  ModelLayout layout;
  layout.blocks.push_back(embedding_block(config));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    layout.blocks.push_back(attention_block(config, layer));
    layout.blocks.push_back(mlp_block(config, layer));
  }
  layout.blocks.push_back(head_block(config));
  check_total(layout);
  return layout;
}

void initialize(const ModelLayout& layout, int64_t block, int64_t begin, float* values, int64_t count, uint64_t seed) {
  uint64_t stream = 0;  // number of the tensor in the whole layout
  for (int64_t b = 0; b < block; ++b) stream += layout.blocks[static_cast<size_t>(b)].tensors.size();
  const int64_t end = begin + count;
  for (const TensorSpec& tensor : layout.blocks[static_cast<size_t>(block)].tensors) {
    const int64_t first = std::max(begin, tensor.offset);
    const int64_t last = std::min(end, tensor.offset + tensor.size());
    for (int64_t i = first; i < last; ++i) {
      float& value = values[i - begin];
      switch (tensor.init) {
        case InitKind::zeros:
          value = 0.0f;
          break;
        case InitKind::ones:
          value = 1.0f;
          break;
        case InitKind::normal:
          value = static_cast<float>(tensor.init_std *
                                     random_normal(seed, stream, static_cast<uint64_t>(i - tensor.offset)));
          break;
      }
    }
    ++stream;
  }
}

}  // namespace hat
