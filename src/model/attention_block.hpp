#pragma once
#include "norm.hpp"

namespace hat {

/// Why a block runs forward: for the loss alone, as the first half of a pass, or once more for what was not kept.
enum class Forward { alone, before_backward, repeated };

/// y = x + attention(norm(x)) o^T, the first half of a layer. Its input x (T, C) is the layer's to keep.
///
/// A range of a document attends to its own keys and values and to those of earlier ranges, which come from the
/// exchange. Its K and V are computed first, so that others get them while this member computes on.
class AttentionBlock {
 public:
  /// Of layer `layer`, counted from 0.
  AttentionBlock(const ModelConfig& config, int64_t layer, const BlockSpec& block, Recompute recompute, Element stored);

  template <typename Visit>
  void buffers(int64_t tokens, Visit& visit) {
    norm_.buffers(tokens, visit);
    if (recompute_ == Recompute::none) visit(qkv_, tokens * qkv_width_);
    if (recompute_ == Recompute::full) return;
    visit(attended_, tokens * width_);
    visit(log_sum_exp_, tokens * heads_);
  }

  /// Writes y (T, C).
  void forward(const PassContext& pass, Forward purpose, const BlockParameters& parameters, const float* x, float* y);
  /// d_residual (T, C) comes as dy and leaves as dx; gradients of the block's tensors +=. With Recompute::full, what it
  /// needs is what the newest call of `forward`, on the same x, left in the scratch buffers.
  void backward(const PassContext& pass, const BlockParameters& parameters, const float* x, float* d_residual,
                float* gradients);

 private:
  /// Neighbouring columns of q, k and v, which are computed together: of whole documents all of them. The rows of some
  /// columns lie one behind the other, so a range has (T, H D) of q and then (T, 2 K D) of k and v.
  struct Columns {
    int64_t first;
    int64_t width;
    int64_t rotated_heads;
  };
  Columns all() const { return {0, qkv_width_, heads_ + kv_heads_}; }
  Columns queries() const { return {0, width_, heads_}; }
  Columns keys_values() const { return {width_, 2 * kv_width(), kv_heads_}; }
  int64_t kv_width() const { return kv_heads_ * head_size_; }

  /// Three neighbours in a row, or two arrays, of q, k and v or of their gradients.
  template <typename Pointer>
  struct Qkv {
    Pointer q, k, v;
  };
  template <typename Pointer>
  Qkv<Pointer> split(const DeviceBatch& batch, Pointer qkv) const {
    const Pointer k = qkv + width_ * (batch.range == nullptr ? 1 : batch.tokens);
    return {qkv, k, k + kv_width()};
  }
  AttentionShape shape(const DeviceBatch& batch) const;

  void compute_qkv(const PassContext& pass, Forward purpose, const BlockParameters& parameters, const float* x);
  void compute(const PassContext& pass, const Columns& columns, const BlockParameters& parameters, const float* x);
  /// attended and log_sum_exp, from the K and V of all ranges up to this one.
  void attend_ranges(const PassContext& pass);
  /// d_attended (T, H D) in scratch, from d_residual.
  void backward_output(const PassContext& pass, const BlockParameters& parameters, const float* d_residual,
                       float* gradients);
  /// d_qkv in scratch without what later ranges add to it; earlier ranges get their shares.
  void backward_ranges(const PassContext& pass);
  /// Adds to d_qkv what later ranges know of it.
  void add_later(const PassContext& pass);
  /// From the columns' d_qkv in scratch to d_residual.
  void backward(const PassContext& pass, const Columns& columns, const BlockParameters& parameters, const float* x,
                float* d_residual, float* gradients);

  // Where the activations are: kept here, or in scratch until the next layer.
  Values qkv(const PassContext& pass) { return recompute_ == Recompute::none ? qkv_.data() : pass.scratch.qkv.data(); }
  Values attended(const PassContext& pass) {
    return recompute_ == Recompute::full ? pass.scratch.attended.data() : attended_.data();
  }
  float* log_sum_exp(const PassContext& pass) {
    return recompute_ == Recompute::full ? pass.scratch.log_sum_exp.data() : log_sum_exp_.data();
  }

  ModelFamily family_;
  int64_t layer_;
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
  ValuesBuffer qkv_;                 ///< (T, (H + 2 K) D), q and k rotated; of a range (T, H D), (T, 2 K D)
  ValuesBuffer attended_;            ///< (T, H D)
  DeviceBuffer<float> log_sum_exp_;  ///< (H, T)
};

}  // namespace hat
