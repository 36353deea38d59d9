#include "mlp_block.hpp"

namespace hat {

MlpBlock::MlpBlock(const ModelConfig& config, const BlockSpec& block, Recompute recompute, Element stored)
    : family_(config.family),
      keeps_up_(recompute == Recompute::none),
      stored_(stored),
      width_(config.width),
      mlp_width_(mlp_width(config)),
      up_width_(config.family == ModelFamily::gpt2 ? mlp_width_ : 2 * mlp_width_),
      up_weight_(tensor_offset(block, config.family == ModelFamily::gpt2 ? "up.weight" : "gate.weight")),
      down_weight_(tensor_offset(block, "down.weight")),
      norm_(config, block),
      up_(stored) {
  if (family_ == ModelFamily::gpt2) {
    up_bias_ = tensor_offset(block, "up.bias");
    down_bias_ = tensor_offset(block, "down.bias");
  }
}

void MlpBlock::compute_activation(const PassContext& pass, Chunk chunk, const BlockParameters& parameters,
                                  const float* x, Values up) {
  float* normed = pass.scratch.normed.data();
  float* activation = pass.scratch.middle.data();
  // In fp32 the product is what is kept.
  float* product = up.data() != nullptr && up.element() == Element::fp32 ? up.fp32() : pass.scratch.wide.data();
  norm_.forward(pass, chunk, parameters.values, x, normed);
  multiply_forward(pass, chunk.rows, up_width_, width_, normed, parameters.weight(up_weight_, width_), product);
  if (family_ == ModelFamily::gpt2) {
    pass.ops.gelu_forward(pass.stream, chunk.rows, mlp_width_, product, parameters.values + up_bias_, up, activation);
  } else {
    pass.ops.swiglu_forward(pass.stream, chunk.rows, mlp_width_, product, up, activation);
  }
}

void MlpBlock::forward(const PassContext& pass, const BlockParameters& parameters, const float* x, float* y) {
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    const Values up = keeps_up_ ? up_.data() + chunk.begin * up_width_ : Values(nullptr, stored_);
    compute_activation(pass, chunk, parameters, x + first, up);
    multiply_forward(pass, chunk.rows, width_, mlp_width_, pass.scratch.middle.data(),
                     parameters.weight(down_weight_, mlp_width_), y + first);
    pass.ops.residual_forward(pass.stream, chunk.rows, width_, x + first,
                              family_ == ModelFamily::gpt2 ? parameters.values + down_bias_ : nullptr, y + first);
  });
}

void MlpBlock::backward(const PassContext& pass, const BlockParameters& parameters, const float* x, float* d_residual,
                        float* gradients) {
  Scratch& scratch = pass.scratch;
  float* normed = scratch.normed.data();
  float* d_up = scratch.wide.data();
  float* activation = scratch.middle.data();  // its gradient first
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    const float* dy = d_residual + first;
    Values up = keeps_up_ ? up_.data() + chunk.begin * up_width_ : scratch.up.data();
    if (keeps_up_) {
      norm_.forward(pass, chunk, parameters.values, x + first, normed);
    } else {
      compute_activation(pass, chunk, parameters, x + first, up);
    }
    multiply_input_gradient(pass, chunk.rows, width_, mlp_width_, dy, parameters.weight(down_weight_, mlp_width_),
                            activation);
    if (family_ == ModelFamily::gpt2) {
      pass.ops.gelu_backward(pass.stream, chunk.rows, mlp_width_, up, activation, d_up, activation);
      pass.ops.bias_backward(pass.stream, chunk.rows, width_, dy, gradients + down_bias_);
      pass.ops.bias_backward(pass.stream, chunk.rows, up_width_, d_up, gradients + up_bias_);
    } else {
      pass.ops.swiglu_backward(pass.stream, chunk.rows, mlp_width_, up, activation, d_up, activation);
    }
    multiply_weight_gradient(pass, chunk.rows, width_, mlp_width_, dy, activation, gradients + down_weight_);
    multiply_weight_gradient(pass, chunk.rows, up_width_, width_, d_up, normed, gradients + up_weight_);
    multiply_input_gradient(pass, chunk.rows, up_width_, width_, d_up, parameters.weight(up_weight_, width_),
                            scratch.d_normed.data());
    norm_.backward(pass, chunk, parameters.values, x + first, scratch.d_normed.data(), d_residual + first, gradients);
  });
}

}  // namespace hat
