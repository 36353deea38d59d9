#pragma once
#include <vector>

#include "norm.hpp"

namespace hat {

/// Final norm, output matrix and loss. Logits exist for kRows rows at a time only; when a gradient is wanted, each such
/// piece goes forward and backward at once, so that no logits are stored or computed twice.
class HeadBlock {
 public:
  static constexpr int64_t kRows = 512;

  HeadBlock(const ModelConfig& config, const BlockSpec& block);

  void grow(const Device& device, int64_t tokens);
  /// Where the block's input x (T, C) is to be put; kept until the backward pass.
  float* input() { return input_.data(); }
  bool tied() const { return tied_; }

  /// The output matrix (V, C): of this block, or the token embedding when tied.
  const float* output_weight(const float* head, const float* embedding) const;
  float* output_weight(float* head, float* embedding) const;

  /// Sum of the targets' nats. `output` is the matrix above.
  double loss(const PassContext& pass, const float* parameters, const float* output);
  /// The same; gradients of norm and output matrix +=, d_residual (T, C) = gradient of x.
  double gradient(const PassContext& pass, const float* parameters, const float* output, float* d_residual,
                  float* gradients, float* d_output);
  /// Logits (T, V) in host memory.
  void logits(const PassContext& pass, const float* parameters, const float* output, float* logits);

 private:
  /// Normalised input times the output matrix for rows [begin, begin + rows), into logits_.
  void compute_logits(const PassContext& pass, const float* output, int64_t begin, int64_t rows);
  double sum_nats(const PassContext& pass);

  int64_t width_;          ///< C
  int64_t vocabulary_;     ///< V
  int64_t logits_stride_;  ///< V up to a multiple of 16, so that rows start at a vector's boundary
  bool tied_;
  int64_t output_weight_ = 0;
  Norm norm_;
  DeviceBuffer<float> input_;      ///< (T, C)
  DeviceBuffer<float> normed_;     ///< (T, C)
  DeviceBuffer<float> logits_;     ///< (kRows, logits_stride_)
  DeviceBuffer<double> row_nats_;  ///< (T)
  std::vector<double> host_nats_;
};

}  // namespace hat
