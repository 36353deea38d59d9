#pragma once
#include "norm.hpp"

namespace hat {

/// y = x + activation(norm(x) up^T) down^T, the second half of a layer: SwiGLU (Llama) or GELU (GPT-2). Owns the
/// activations its backward pass needs.
class MlpBlock {
 public:
  MlpBlock(const ModelConfig& config, const BlockSpec& block);

  void grow(const Device& device, int64_t tokens);
  /// Where the block's input x (T, C) is to be put; kept until the backward pass.
  float* input() { return input_.data(); }
  /// Writes y (T, C).
  void forward(const PassContext& pass, const float* parameters, float* y);
  /// d_residual (T, C) comes as dy and leaves as dx; gradients of the block's tensors +=.
  void backward(const PassContext& pass, const float* parameters, float* d_residual, float* gradients) const;

 private:
  ModelFamily family_;
  int64_t width_;      ///< C
  int64_t mlp_width_;  ///< F
  int64_t up_width_;   ///< columns of the product before the activation: 2 F (gate and up) or F
  int64_t up_weight_;  ///< gate and up, or up
  int64_t up_bias_ = 0;
  int64_t down_weight_;
  int64_t down_bias_ = 0;
  Norm norm_;
  DeviceBuffer<float> input_;      ///< (T, C)
  DeviceBuffer<float> normed_;     ///< (T, C)
  DeviceBuffer<float> up_;         ///< (T, 2 F) or (T, F)
  DeviceBuffer<float> activated_;  ///< (T, F)
};

}  // namespace hat
