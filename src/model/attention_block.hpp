#pragma once
#include "norm.hpp"

namespace hat {

/// y = x + attention(norm(x)) o^T, the first half of a layer. Its input x (T, C) is the layer's to keep.
class AttentionBlock {
 public:
  AttentionBlock(const ModelConfig& config, const BlockSpec& block, Recompute recompute, Element stored);

  template <typename Visit>
  void buffers(int64_t tokens, Visit& visit) {
    norm_.buffers(tokens, visit);
    if (recompute_ == Recompute::none) visit(qkv_, tokens * qkv_width_);
    if (recompute_ == Recompute::full) return;
    visit(attended_, tokens * width_);
    visit(log_sum_exp_, tokens * heads_);
  }

  /// Writes y (T, C).
  void forward(const PassContext& pass, const float* parameters, const float* x, float* y);
  /// d_residual (T, C) comes as dy and leaves as dx; gradients of the block's tensors +=. With Recompute::full, what it
  /// needs is what the newest call of `forward`, on the same x, left in the scratch buffers.
  void backward(const PassContext& pass, const float* parameters, const float* x, float* d_residual, float* gradients);

 private:
  AttentionShape shape(const DeviceBatch& batch) const;
  void compute_qkv(const PassContext& pass, const float* parameters, const float* x);
  /// d_attended (T, H D) in scratch, from d_residual.
  void backward_output(const PassContext& pass, const float* parameters, const float* d_residual, float* gradients);
  /// From d_qkv in scratch to d_residual.
  void backward_qkv(const PassContext& pass, const float* parameters, const float* x, float* d_residual,
                    float* gradients);

  // Where the activations are: kept here, or in scratch until the next layer.
  Values qkv(const PassContext& pass) { return recompute_ == Recompute::none ? qkv_.data() : pass.scratch.qkv.data(); }
  Values attended(const PassContext& pass) {
    return recompute_ == Recompute::full ? pass.scratch.attended.data() : attended_.data();
  }
  float* log_sum_exp(const PassContext& pass) {
    return recompute_ == Recompute::full ? pass.scratch.log_sum_exp.data() : log_sum_exp_.data();
  }

  ModelFamily family_;
  Recompute recompute_;
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
  ValuesBuffer qkv_;                 ///< (T, (H + 2 K) D), q and k rotated
  ValuesBuffer attended_;            ///< (T, H D)
  DeviceBuffer<float> log_sum_exp_;  ///< (H, T)
};

}  // namespace hat
