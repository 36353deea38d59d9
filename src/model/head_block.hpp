#pragma once

#include "norm.hpp"

namespace hat {

/// Final norm, output matrix and loss. Logits exist for some rows at a time only; when a gradient is wanted, each such
/// piece goes forward and backward at once, so that no logits are stored or computed twice.
class HeadBlock {
 public:
  HeadBlock(const ModelConfig& config, const BlockSpec& block);

  template <typename Visit>
  void buffers(int64_t tokens, Visit& visit) {
    norm_.buffers(tokens, visit);
    visit(input_, tokens * width_);
    visit(normed_, std::min(tokens, rows_) * width_);
    visit(d_normed_, std::min(tokens, rows_) * width_);
    visit(logits_, std::min(tokens, rows_) * logits_stride_);
    visit(row_nats_, tokens);
    visit(host_nats_, tokens);
  }
  /// Rows of a piece, in a batch of so many tokens.
  int64_t piece_rows(int64_t tokens) const { return std::min(tokens, rows_); }
  /// Where the block's input x (T, C) is to be put; kept until the backward pass.
  float* input() { return input_.data(); }

  /// The output matrix (V, C): of this block, or the token embedding when tied.
  ConstValues output_weight(const BlockParameters& head, const BlockParameters& embedding) const;
  float* output_weight(float* head, float* embedding) const;

  /// Sum of the targets' nats. `output` is the matrix above.
  double loss(const PassContext& pass, const BlockParameters& parameters, ConstValues output);
  /// The same; gradients of norm and output matrix +=, d_residual (T, C) = gradient of x.
  double gradient(const PassContext& pass, const BlockParameters& parameters, ConstValues output, float* d_residual,
                  float* gradients, float* d_output);
  /// Logits (T, V) in host memory.
  void logits(const PassContext& pass, const BlockParameters& parameters, ConstValues output, float* logits);

 private:
  /// Calls work(chunk) for pieces of rows_ rows, whose logits are in logits_ by then.
  template <typename Work>
  void for_each_piece(const PassContext& pass, const BlockParameters& parameters, ConstValues output, const Work& work);
  double sum_nats(const PassContext& pass);

  int64_t width_;          ///< C
  int64_t vocabulary_;     ///< V
  int64_t logits_stride_;  ///< V up to a multiple of 16, so that rows start at a vector's boundary
  int64_t rows_;           ///< of a piece
  bool tied_;
  int64_t output_weight_ = 0;
  Norm norm_;
  DeviceBuffer<float> input_;       ///< (T, C)
  DeviceBuffer<float> normed_;      ///< (rows_, C)
  DeviceBuffer<float> d_normed_;    ///< (rows_, C)
  DeviceBuffer<float> logits_;      ///< (rows_, logits_stride_)
  DeviceBuffer<double> row_nats_;   ///< (T)
  PinnedBuffer<double> host_nats_;  ///< the same, where the host can read them
};

}  // namespace hat
