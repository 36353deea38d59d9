#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "hat/core/random.hpp"
#include "hat/model/transformer.hpp"

/// What the tests of the model share: parameters and gradients in memory, random batches, distances.
namespace hat::test {

/// One vector per block, and the pointers that the model takes.
class BlockValues {
 public:
  explicit BlockValues(const ModelLayout& layout) {
    for (const BlockSpec& block : layout.blocks) values_.emplace_back(static_cast<size_t>(block.size), 0.0f);
  }

  std::vector<float>& block(size_t index) { return values_[index]; }
  const std::vector<float>& block(size_t index) const { return values_[index]; }
  size_t blocks() const { return values_.size(); }
  std::span<float> tensor(size_t block, const TensorSpec& tensor) {
    return {values_[block].data() + tensor.offset, static_cast<size_t>(tensor.size())};
  }

  ParameterPointers parameters() const { return pointers_of(values_); }
  GradientPointers gradients() {
    GradientPointers result;
    for (auto& block : values_) result.push_back(block.data());
    return result;
  }

 private:
  static ParameterPointers pointers_of(const std::vector<std::vector<float>>& values) {
    ParameterPointers result;
    for (const auto& block : values) result.push_back(block.data());
    return result;
  }

  std::vector<std::vector<float>> values_;
};

/// Every tensor uniform in centre +- amplitude, centre 1 for norm weights, else 0: unlike the real start values, no
/// gradient is zero or tiny. fixtures/make_reference.py computes the same.
inline BlockValues formula_parameters(const ModelLayout& layout, uint64_t seed, double amplitude) {
  BlockValues result(layout);
  uint64_t stream = 0;
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    for (const TensorSpec& tensor : layout.blocks[b].tensors) {
      const double centre = tensor.name == "norm.weight" ? 1.0 : 0.0;
      const std::span<float> values = result.tensor(b, tensor);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(centre + amplitude * (2.0 * random_uniform(seed, stream, i) - 1.0));
      }
      ++stream;
    }
  }
  return result;
}

/// Documents of these lengths with random tokens and targets.
inline PackedBatch random_batch(const std::vector<int32_t>& lengths, int64_t vocabulary, uint64_t seed) {
  PackedBatch batch;
  batch.offsets.push_back(0);
  for (const int32_t length : lengths) batch.offsets.push_back(batch.offsets.back() + length);
  const auto range = static_cast<uint64_t>(vocabulary);
  for (uint64_t t = 0; t < static_cast<uint64_t>(batch.offsets.back()); ++t) {
    batch.inputs.push_back(static_cast<int32_t>(random_below(seed, 0, t, range)));
    batch.targets.push_back(static_cast<int32_t>(random_below(seed, 1, t, range)));
  }
  return batch;
}

/// Document `document` of a batch, alone.
inline PackedBatch one_document(const PackedBatch& batch, size_t document) {
  const auto begin = batch.offsets[document];
  const auto end = batch.offsets[document + 1];
  PackedBatch result;
  result.inputs.assign(batch.inputs.begin() + begin, batch.inputs.begin() + end);
  result.targets.assign(batch.targets.begin() + begin, batch.targets.begin() + end);
  result.offsets = {0, end - begin};
  return result;
}

/// norm(a - b) / norm(b); b must not be zero everywhere.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

inline ModelConfig small_llama() {
  ModelConfig config;
  config.width = 24;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.mlp_width = 40;
  config.vocabulary = 61;
  return config;
}

inline ModelConfig small_gpt2() {
  ModelConfig config;
  config.family = ModelFamily::gpt2;
  config.width = 18;
  config.layers = 2;
  config.heads = 3;
  config.mlp_width = 50;
  config.vocabulary = 61;
  config.max_length = 20;
  config.tied = true;
  return config;
}

}  // namespace hat::test
