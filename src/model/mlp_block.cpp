#include "mlp_block.hpp"

namespace hat {

MlpBlock::MlpBlock(const ModelConfig& config, const BlockSpec& block)
    : family_(config.family),
      width_(config.width),
      mlp_width_(mlp_width(config)),
      up_width_(config.family == ModelFamily::gpt2 ? mlp_width_ : 2 * mlp_width_),
      up_weight_(tensor_offset(block, config.family == ModelFamily::gpt2 ? "up.weight" : "gate.weight")),
      down_weight_(tensor_offset(block, "down.weight")),
      norm_(config, block) {
  if (family_ == ModelFamily::gpt2) {
    up_bias_ = tensor_offset(block, "up.bias");
    down_bias_ = tensor_offset(block, "down.bias");
  }
}

void MlpBlock::grow(const Device& device, int64_t tokens) {
  norm_.grow(device, tokens);
  input_.grow(device, tokens * width_);
  normed_.grow(device, tokens * width_);
  up_.grow(device, tokens * up_width_);
  activated_.grow(device, tokens * mlp_width_);
}

void MlpBlock::forward(const PassContext& pass, const float* parameters, float* y) {
  const int64_t T = pass.batch.tokens;
  norm_.forward(pass, parameters, input_.data(), normed_.data());
  multiply_forward(pass, T, up_width_, width_, normed_.data(), parameters + up_weight_, 0.0f, up_.data());
  if (family_ == ModelFamily::gpt2) {
    pass.ops.bias_forward(pass.stream, T, up_width_, parameters + up_bias_, up_.data());
    pass.ops.gelu_forward(pass.stream, T * mlp_width_, up_.data(), activated_.data());
  } else {
    pass.ops.swiglu_forward(pass.stream, T, mlp_width_, up_.data(), activated_.data());
  }
  pass.ops.copy(pass.stream, T * width_, input_.data(), y);
  multiply_forward(pass, T, width_, mlp_width_, activated_.data(), parameters + down_weight_, 1.0f, y);
  if (family_ == ModelFamily::gpt2) pass.ops.bias_forward(pass.stream, T, width_, parameters + down_bias_, y);
}

void MlpBlock::backward(const PassContext& pass, const float* parameters, float* d_residual, float* gradients) const {
  const int64_t T = pass.batch.tokens;
  float* d_up = pass.scratch.wide.data();
  float* d_activated = pass.scratch.middle.data();
  float* d_normed = pass.scratch.narrow.data();

  if (family_ == ModelFamily::gpt2) pass.ops.bias_backward(pass.stream, T, width_, d_residual, gradients + down_bias_);
  multiply_weight_gradient(pass, T, width_, mlp_width_, d_residual, activated_.data(), gradients + down_weight_);
  multiply_input_gradient(pass, T, width_, mlp_width_, d_residual, parameters + down_weight_, d_activated);

  if (family_ == ModelFamily::gpt2) {
    pass.ops.gelu_backward(pass.stream, T * mlp_width_, up_.data(), d_activated, d_up);
    pass.ops.bias_backward(pass.stream, T, up_width_, d_up, gradients + up_bias_);
  } else {
    pass.ops.swiglu_backward(pass.stream, T, mlp_width_, up_.data(), d_activated, d_up);
  }
  multiply_weight_gradient(pass, T, up_width_, width_, d_up, normed_.data(), gradients + up_weight_);
  multiply_input_gradient(pass, T, up_width_, width_, d_up, parameters + up_weight_, d_normed);
  norm_.backward(pass, parameters, input_.data(), d_normed, d_residual, gradients);
}

}  // namespace hat
