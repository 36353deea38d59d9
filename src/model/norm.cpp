#include "norm.hpp"

namespace hat {

Norm::Norm(const ModelConfig& config, const BlockSpec& block)
    : family_(config.family),
      width_(config.width),
      epsilon_(static_cast<float>(config.norm_epsilon)),
      weight_(tensor_offset(block, "norm.weight")) {
  if (family_ == ModelFamily::gpt2) bias_ = tensor_offset(block, "norm.bias");
}

void Norm::forward(const PassContext& pass, Chunk chunk, const float* parameters, const float* x, float* y) {
  float* inverse = inverse_.data() + chunk.begin;
  if (family_ == ModelFamily::gpt2) {
    pass.ops.layernorm_forward(pass.stream, chunk.rows, width_, epsilon_, x, parameters + weight_, parameters + bias_,
                               y, mean_.data() + chunk.begin, inverse);
  } else {
    pass.ops.rmsnorm_forward(pass.stream, chunk.rows, width_, epsilon_, x, parameters + weight_, y, inverse);
  }
}

void Norm::backward(const PassContext& pass, Chunk chunk, const float* parameters, const float* x, const float* dy,
                    float* dx, float* gradients) const {
  const float* inverse = inverse_.data() + chunk.begin;
  if (family_ == ModelFamily::gpt2) {
    pass.ops.layernorm_backward(pass.stream, chunk.rows, width_, x, parameters + weight_, mean_.data() + chunk.begin,
                                inverse, dy, dx, gradients + weight_, gradients + bias_);
  } else {
    pass.ops.rmsnorm_backward(pass.stream, chunk.rows, width_, x, parameters + weight_, inverse, dy, dx,
                              gradients + weight_);
  }
}

}  // namespace hat
