#pragma once
#include "pass.hpp"

namespace hat {

/// The normalisation at the start of a block: RMSNorm (Llama) or LayerNorm (GPT-2) with what its backward pass needs.
class Norm {
 public:
  Norm(const ModelConfig& config, const BlockSpec& block);

  void grow(const Device& device, int64_t tokens);
  /// y (T, C) = norm(x).
  void forward(const PassContext& pass, const float* parameters, const float* x, float* y);
  /// dx (T, C) +=, gradients of weight and bias +=.
  void backward(const PassContext& pass, const float* parameters, const float* x, const float* dy, float* dx,
                float* gradients) const;

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
