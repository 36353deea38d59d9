#pragma once
#include "norm.hpp"

namespace hat {

/// y = x + activation(norm(x) up^T) down^T, the second half of a layer: SwiGLU (Llama) or GELU (GPT-2). Its input
/// x (T, C) is the layer's to keep.
class MlpBlock {
 public:
  MlpBlock(const ModelConfig& config, const BlockSpec& block, Recompute recompute, Element stored);

  template <typename Visit>
  void buffers(int64_t tokens, Visit& visit) {
    norm_.buffers(tokens, visit);
    if (keeps_up_) visit(up_, tokens * up_width_);
  }

  /// Writes y (T, C).
  void forward(const PassContext& pass, const BlockParameters& parameters, const float* x, float* y);
  /// d_residual (T, C) comes as dy and leaves as dx; gradients of the block's tensors +=.
  void backward(const PassContext& pass, const BlockParameters& parameters, const float* x, float* d_residual,
                float* gradients);

 private:
  /// normed and activation of a chunk in scratch. What the activation came from goes to `up`, which may be null.
  void compute_activation(const PassContext& pass, Chunk chunk, const BlockParameters& parameters, const float* x,
                          Values up);

  ModelFamily family_;
  bool keeps_up_;
  Element stored_;
  int64_t width_;      ///< C
  int64_t mlp_width_;  ///< F
  int64_t up_width_;   ///< columns of the product before the activation: 2 F (gate and up) or F
  int64_t up_weight_;  ///< gate and up, or up
  int64_t up_bias_ = 0;
  int64_t down_weight_;
  int64_t down_bias_ = 0;
  Norm norm_;
  ValuesBuffer up_;  ///< (T, 2 F) or (T, F)
};

}  // namespace hat
