#include "attention_block.hpp"

namespace hat {

AttentionBlock::AttentionBlock(const ModelConfig& config, const BlockSpec& block)
    : family_(config.family),
      width_(config.width),
      heads_(config.heads),
      kv_heads_(kv_heads(config)),
      head_size_(config.width / config.heads),
      qkv_width_((heads_ + 2 * kv_heads_) * head_size_),
      qkv_weight_(tensor_offset(block, "q.weight")),
      o_weight_(tensor_offset(block, "o.weight")),
      norm_(config, block) {
  if (family_ == ModelFamily::gpt2) {
    qkv_bias_ = tensor_offset(block, "q.bias");
    o_bias_ = tensor_offset(block, "o.bias");
  }
}

void AttentionBlock::grow(const Device& device, int64_t tokens) {
  norm_.grow(device, tokens);
  input_.grow(device, tokens * width_);
  normed_.grow(device, tokens * width_);
  qkv_.grow(device, tokens * qkv_width_);
  attended_.grow(device, tokens * width_);
  log_sum_exp_.grow(device, tokens * heads_);
}

AttentionShape AttentionBlock::shape(const DeviceBatch& batch) const {
  return {.tokens = batch.tokens,
          .documents = batch.documents,
          .offsets = batch.offsets,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_size = head_size_,
          .qkv_stride = qkv_width_};
}

void AttentionBlock::rotate(const PassContext& pass, RopeDirection direction, float* qkv) const {
  if (family_ == ModelFamily::gpt2) return;  // has learned positions instead
  // q and k are neighbours: H + K heads in a row.
  pass.ops.rope(pass.stream, direction, pass.batch.tokens, heads_ + kv_heads_, head_size_, qkv_width_,
                pass.batch.positions, pass.batch.cosine, pass.batch.sine, qkv);
}

void AttentionBlock::forward(const PassContext& pass, const float* parameters, float* y) {
  const int64_t T = pass.batch.tokens;
  const AttentionShape attention = shape(pass.batch);
  pass.scratch.attention.grow(pass.stream.device(), pass.ops.attention_workspace(pass.stream, attention));
  float* qkv = qkv_.data();

  norm_.forward(pass, parameters, input_.data(), normed_.data());
  multiply_forward(pass, T, qkv_width_, width_, normed_.data(), parameters + qkv_weight_, 0.0f, qkv);
  if (family_ == ModelFamily::gpt2) {
    pass.ops.bias_forward(pass.stream, T, qkv_width_, parameters + qkv_bias_, qkv);
  }
  rotate(pass, RopeDirection::forward, qkv);
  pass.ops.attention_forward(pass.stream, attention, qkv, qkv + width_, qkv + width_ + kv_heads_ * head_size_,
                             attended_.data(), log_sum_exp_.data(), pass.scratch.attention.data());
  pass.ops.copy(pass.stream, T * width_, input_.data(), y);
  multiply_forward(pass, T, width_, width_, attended_.data(), parameters + o_weight_, 1.0f, y);
  if (family_ == ModelFamily::gpt2) pass.ops.bias_forward(pass.stream, T, width_, parameters + o_bias_, y);
}

void AttentionBlock::backward(const PassContext& pass, const float* parameters, float* d_residual,
                              float* gradients) const {
  const int64_t T = pass.batch.tokens;
  const int64_t kv_width = kv_heads_ * head_size_;
  const float* qkv = qkv_.data();
  float* d_qkv = pass.scratch.wide.data();
  float* d_attended = pass.scratch.middle.data();
  float* d_normed = pass.scratch.narrow.data();

  if (family_ == ModelFamily::gpt2) pass.ops.bias_backward(pass.stream, T, width_, d_residual, gradients + o_bias_);
  multiply_weight_gradient(pass, T, width_, width_, d_residual, attended_.data(), gradients + o_weight_);
  multiply_input_gradient(pass, T, width_, width_, d_residual, parameters + o_weight_, d_attended);

  pass.ops.attention_backward(pass.stream, shape(pass.batch), qkv, qkv + width_, qkv + width_ + kv_width,
                              attended_.data(), log_sum_exp_.data(), d_attended, d_qkv, d_qkv + width_,
                              d_qkv + width_ + kv_width, pass.scratch.attention.data());
  rotate(pass, RopeDirection::backward, d_qkv);

  if (family_ == ModelFamily::gpt2) pass.ops.bias_backward(pass.stream, T, qkv_width_, d_qkv, gradients + qkv_bias_);
  multiply_weight_gradient(pass, T, qkv_width_, width_, d_qkv, normed_.data(), gradients + qkv_weight_);
  multiply_input_gradient(pass, T, qkv_width_, width_, d_qkv, parameters + qkv_weight_, d_normed);
  norm_.backward(pass, parameters, input_.data(), d_normed, d_residual, gradients);
}

}  // namespace hat
