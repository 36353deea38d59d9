#pragma once
#include "pass.hpp"

namespace hat {

/// The normalisation at the start of a block: RMSNorm (Llama) or LayerNorm (GPT-2) with what its backward pass needs.
class Norm {
 public:
  Norm(const ModelConfig& config, const BlockSpec& block);

  template <typename Visit>
  void buffers(int64_t tokens, Visit& visit) {
    visit(inverse_, tokens);
    if (family_ == ModelFamily::gpt2) visit(mean_, tokens);
  }
  /// y (rows of the chunk, C) = norm(x), both from the chunk's first row.
  void forward(const PassContext& pass, Chunk chunk, const float* parameters, const float* x, float* y);
  /// dx (rows of the chunk, C) +=, gradients of weight and bias +=.
  void backward(const PassContext& pass, Chunk chunk, const float* parameters, const float* x, const float* dy,
                float* dx, float* gradients) const;

 private:
  ModelFamily family_;
  int64_t width_;
  float epsilon_;
  int64_t weight_;
  int64_t bias_ = 0;
  DeviceBuffer<float> mean_;     ///< (T), LayerNorm only
  DeviceBuffer<float> inverse_;  ///< (T), 1 / rms or 1 / standard deviation
};

}  // namespace hat
