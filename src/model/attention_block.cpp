#include "attention_block.hpp"

namespace hat {

AttentionBlock::AttentionBlock(const ModelConfig& config, const BlockSpec& block, Recompute recompute, Element stored)
    : family_(config.family),
      recompute_(recompute),
      width_(config.width),
      heads_(config.heads),
      kv_heads_(kv_heads(config)),
      head_size_(config.width / config.heads),
      qkv_width_((heads_ + 2 * kv_heads_) * head_size_),
      qkv_weight_(tensor_offset(block, "q.weight")),
      o_weight_(tensor_offset(block, "o.weight")),
      norm_(config, block),
      qkv_(stored),
      attended_(stored) {
  if (family_ == ModelFamily::gpt2) {
    qkv_bias_ = tensor_offset(block, "q.bias");
    o_bias_ = tensor_offset(block, "o.bias");
  }
}

AttentionShape AttentionBlock::shape(const DeviceBatch& batch) const {
  return {.tokens = batch.tokens,
          .documents = batch.documents,
          .offsets = batch.offsets,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_size = head_size_,
          .q_stride = qkv_width_,
          .kv_stride = qkv_width_};
}

void AttentionBlock::compute_qkv(const PassContext& pass, const float* parameters, const float* x) {
  float* normed = pass.scratch.normed.data();
  for_each_chunk(pass, [&](Chunk chunk) {
    const Values stored = qkv(pass) + chunk.begin * qkv_width_;
    float* product = stored.element() == Element::fp32 ? stored.fp32() : pass.scratch.product.data();
    norm_.forward(pass, chunk, parameters, x + chunk.begin * width_, normed);
    multiply_forward(pass, chunk.rows, qkv_width_, width_, normed, parameters + qkv_weight_, product);
    // q and k are neighbours: H + K heads in a row. GPT-2 has learned positions, and no table of angles.
    pass.ops.rope_forward(pass.stream, chunk.rows, qkv_width_, heads_ + kv_heads_, head_size_,
                          pass.batch.positions + chunk.begin, pass.batch.cosine, pass.batch.sine,
                          family_ == ModelFamily::gpt2 ? parameters + qkv_bias_ : nullptr, product, stored);
  });
}

void AttentionBlock::forward(const PassContext& pass, const float* parameters, const float* x, float* y) {
  compute_qkv(pass, parameters, x);
  const Values q = qkv(pass);
  pass.ops.attention_forward(pass.stream, shape(pass.batch), q, q + width_, q + width_ + kv_heads_ * head_size_,
                             attended(pass), log_sum_exp(pass), pass.scratch.attention.data());
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    multiply_forward(pass, chunk.rows, width_, width_, attended(pass) + first, parameters + o_weight_, y + first);
    pass.ops.residual_forward(pass.stream, chunk.rows, width_, x + first,
                              family_ == ModelFamily::gpt2 ? parameters + o_bias_ : nullptr, y + first);
  });
}

void AttentionBlock::backward(const PassContext& pass, const float* parameters, const float* x, float* d_residual,
                              float* gradients) {
  if (recompute_ == Recompute::inner) compute_qkv(pass, parameters, x);
  backward_output(pass, parameters, d_residual, gradients);
  const int64_t kv_width = kv_heads_ * head_size_;
  const Values q = qkv(pass);
  float* dq = pass.scratch.d_qkv.data();
  pass.ops.attention_backward(pass.stream, shape(pass.batch), q, q + width_, q + width_ + kv_width, attended(pass),
                              log_sum_exp(pass), pass.scratch.d_attended.data(), dq, dq + width_,
                              dq + width_ + kv_width, pass.scratch.attention.data());
  backward_qkv(pass, parameters, x, d_residual, gradients);
}

void AttentionBlock::backward_output(const PassContext& pass, const float* parameters, const float* d_residual,
                                     float* gradients) {
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    const float* dy = d_residual + first;
    if (family_ == ModelFamily::gpt2) {
      pass.ops.bias_backward(pass.stream, chunk.rows, width_, dy, gradients + o_bias_);
    }
    multiply_weight_gradient(pass, chunk.rows, width_, width_, dy, attended(pass) + first, gradients + o_weight_);
    multiply_input_gradient(pass, chunk.rows, width_, width_, dy, parameters + o_weight_,
                            pass.scratch.d_attended.data() + first);
  });
}

void AttentionBlock::backward_qkv(const PassContext& pass, const float* parameters, const float* x, float* d_residual,
                                  float* gradients) {
  float* normed = pass.scratch.normed.data();
  float* d_normed = pass.scratch.d_normed.data();
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    float* d_qkv = pass.scratch.d_qkv.data() + chunk.begin * qkv_width_;
    if (family_ == ModelFamily::gpt2) {
      pass.ops.bias_backward(pass.stream, chunk.rows, qkv_width_, d_qkv, gradients + qkv_bias_);
    } else {
      pass.ops.rope_backward(pass.stream, chunk.rows, qkv_width_, heads_ + kv_heads_, head_size_,
                             pass.batch.positions + chunk.begin, pass.batch.cosine, pass.batch.sine, d_qkv);
    }
    norm_.forward(pass, chunk, parameters, x + first, normed);
    multiply_weight_gradient(pass, chunk.rows, qkv_width_, width_, d_qkv, normed, gradients + qkv_weight_);
    multiply_input_gradient(pass, chunk.rows, qkv_width_, width_, d_qkv, parameters + qkv_weight_, d_normed);
    norm_.backward(pass, chunk, parameters, x + first, d_normed, d_residual + first, gradients);
  });
}

}  // namespace hat
