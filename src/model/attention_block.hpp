#pragma once
#include "norm.hpp"

namespace hat {

/// y = x + attention(norm(x)) o^T, the first half of a layer. Owns the activations its backward pass needs.
class AttentionBlock {
 public:
  AttentionBlock(const ModelConfig& config, const BlockSpec& block);

  void grow(const Device& device, int64_t tokens);
  /// Where the block's input x (T, C) is to be put; kept until the backward pass.
  float* input() { return input_.data(); }
  /// Writes y (T, C).
  void forward(const PassContext& pass, const float* parameters, float* y);
  /// d_residual (T, C) comes as dy and leaves as dx; gradients of the block's tensors +=.
  void backward(const PassContext& pass, const float* parameters, float* d_residual, float* gradients) const;

 private:
  AttentionShape shape(const DeviceBatch& batch) const;
  void rotate(const PassContext& pass, RopeDirection direction, float* qkv) const;

  ModelFamily family_;
  int64_t width_;      ///< C = H D
  int64_t heads_;      ///< H
  int64_t kv_heads_;   ///< K
  int64_t head_size_;  ///< D
  int64_t qkv_width_;  ///< (H + 2 K) D
  int64_t qkv_weight_;
  int64_t qkv_bias_ = 0;
  int64_t o_weight_;
  int64_t o_bias_ = 0;
  Norm norm_;
  DeviceBuffer<float> input_;        ///< (T, C)
  DeviceBuffer<float> normed_;       ///< (T, C)
  DeviceBuffer<float> qkv_;          ///< (T, (H + 2 K) D), q and k rotated
  DeviceBuffer<float> attended_;     ///< (T, H D)
  DeviceBuffer<float> log_sum_exp_;  ///< (H, T)
};

}  // namespace hat
