#include "head_block.hpp"

#include <algorithm>

namespace hat {

HeadBlock::HeadBlock(const ModelConfig& config, const BlockSpec& block)
    : width_(config.width),
      vocabulary_(config.vocabulary),
      logits_stride_((config.vocabulary + 15) / 16 * 16),
      tied_(config.tied),
      norm_(config, block) {
  if (!tied_) output_weight_ = tensor_offset(block, "output.weight");
}

void HeadBlock::grow(const Device& device, int64_t tokens) {
  norm_.grow(device, tokens);
  input_.grow(device, tokens * width_);
  normed_.grow(device, tokens * width_);
  logits_.grow(device, std::min(tokens, kRows) * logits_stride_);
  row_nats_.grow(device, tokens);
}

const float* HeadBlock::output_weight(const float* head, const float* embedding) const {
  return tied_ ? embedding : head + output_weight_;
}

float* HeadBlock::output_weight(float* head, float* embedding) const {
  return tied_ ? embedding : head + output_weight_;
}

void HeadBlock::compute_logits(const PassContext& pass, const float* output, int64_t begin, int64_t rows) {
  pass.ops.gemm(pass.stream, Transpose::no, Transpose::yes, rows, vocabulary_, width_, 1.0f,
                normed_.data() + begin * width_, width_, output, width_, 0.0f, logits_.data(), logits_stride_);
}

double HeadBlock::sum_nats(const PassContext& pass) {
  const int64_t T = pass.batch.tokens;
  host_nats_.resize(static_cast<size_t>(T));
  copy_to_host(pass.stream, row_nats_.data(), host_nats_.data(), T);
  pass.stream.synchronize();
  double sum = 0.0;
  for (const double value : host_nats_) sum += value;
  return sum;
}

double HeadBlock::loss(const PassContext& pass, const float* parameters, const float* output) {
  const int64_t T = pass.batch.tokens;
  norm_.forward(pass, parameters, input_.data(), normed_.data());
  for (int64_t begin = 0; begin < T; begin += kRows) {
    const int64_t rows = std::min(kRows, T - begin);
    compute_logits(pass, output, begin, rows);
    pass.ops.cross_entropy(pass.stream, CrossEntropyOutput::loss, rows, vocabulary_, logits_stride_,
                           pass.batch.targets + begin, logits_.data(), row_nats_.data() + begin);
  }
  return sum_nats(pass);
}

double HeadBlock::gradient(const PassContext& pass, const float* parameters, const float* output, float* d_residual,
                           float* gradients, float* d_output) {
  const int64_t T = pass.batch.tokens;
  const int64_t C = width_;
  const int64_t V = vocabulary_;
  float* d_logits = logits_.data();
  float* d_normed = pass.scratch.narrow.data();
  norm_.forward(pass, parameters, input_.data(), normed_.data());
  for (int64_t begin = 0; begin < T; begin += kRows) {
    const int64_t rows = std::min(kRows, T - begin);
    compute_logits(pass, output, begin, rows);
    pass.ops.cross_entropy(pass.stream, CrossEntropyOutput::loss_and_gradient, rows, V, logits_stride_,
                           pass.batch.targets + begin, logits_.data(), row_nats_.data() + begin);
    pass.ops.gemm(pass.stream, Transpose::yes, Transpose::no, V, C, rows, 1.0f, d_logits, logits_stride_,
                  normed_.data() + begin * C, C, 1.0f, d_output, C);
    pass.ops.gemm(pass.stream, Transpose::no, Transpose::no, rows, C, V, 1.0f, d_logits, logits_stride_, output, C,
                  0.0f, d_normed + begin * C, C);
  }
  pass.ops.fill(pass.stream, T * C, 0.0f, d_residual);
  norm_.backward(pass, parameters, input_.data(), d_normed, d_residual, gradients);
  return sum_nats(pass);
}

void HeadBlock::logits(const PassContext& pass, const float* parameters, const float* output, float* logits) {
  const int64_t T = pass.batch.tokens;
  norm_.forward(pass, parameters, input_.data(), normed_.data());
  for (int64_t begin = 0; begin < T; begin += kRows) {
    const int64_t rows = std::min(kRows, T - begin);
    compute_logits(pass, output, begin, rows);
    for (int64_t row = 0; row < rows; ++row) {
      copy_to_host(pass.stream, logits_.data() + row * logits_stride_, logits + (begin + row) * vocabulary_,
                   vocabulary_);
    }
    pass.stream.synchronize();
  }
}

}  // namespace hat
