#include "norm.hpp"

namespace hat {

Norm::Norm(const ModelConfig& config, const BlockSpec& block)
    : family_(config.family),
      width_(config.width),
      epsilon_(static_cast<float>(config.norm_epsilon)),
      weight_(tensor_offset(block, "norm.weight")) {
  if (family_ == ModelFamily::gpt2) bias_ = tensor_offset(block, "norm.bias");
}

void Norm::grow(const Device& device, int64_t tokens) {
  inverse_.grow(device, tokens);
  if (family_ == ModelFamily::gpt2) mean_.grow(device, tokens);
}

void Norm::forward(const PassContext& pass, const float* parameters, const float* x, float* y) {
  const int64_t T = pass.batch.tokens;
  if (family_ == ModelFamily::gpt2) {
    pass.ops.layernorm_forward(pass.stream, T, width_, epsilon_, x, parameters + weight_, parameters + bias_, y,
                               mean_.data(), inverse_.data());
  } else {
    pass.ops.rmsnorm_forward(pass.stream, T, width_, epsilon_, x, parameters + weight_, y, inverse_.data());
  }
}

void Norm::backward(const PassContext& pass, const float* parameters, const float* x, const float* dy, float* dx,
                    float* gradients) const {
  const int64_t T = pass.batch.tokens;
  if (family_ == ModelFamily::gpt2) {
    pass.ops.layernorm_backward(pass.stream, T, width_, x, parameters + weight_, mean_.data(), inverse_.data(), dy, dx,
                                gradients + weight_, gradients + bias_);
  } else {
    pass.ops.rmsnorm_backward(pass.stream, T, width_, x, parameters + weight_, inverse_.data(), dy, dx,
                              gradients + weight_);
  }
}

}  // namespace hat
