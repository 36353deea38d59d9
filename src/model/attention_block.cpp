#include "attention_block.hpp"

namespace hat {

AttentionBlock::AttentionBlock(const ModelConfig& config, int64_t layer, const BlockSpec& block, Recompute recompute,
                               Element stored)
    : family_(config.family),
      layer_(layer),
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
  const bool whole = batch.range == nullptr;
  return {.tokens = batch.tokens,
          .documents = batch.documents,
          .offsets = batch.offsets,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_size = head_size_,
          .q_stride = whole ? all().width : queries().width,
          .kv_stride = whole ? all().width : keys_values().width};
}

void AttentionBlock::compute_qkv(const PassContext& pass, Forward purpose, const BlockParameters& parameters,
                                 const float* x) {
  if (pass.batch.range == nullptr) {
    compute(pass, all(), parameters, x);
    return;
  }
  compute(pass, keys_values(), parameters, x);
  if (purpose != Forward::repeated) {
    pass.wait();
    pass.exchange->send_keys_values(layer_, split(pass.batch, qkv(pass)).k);
  }
  compute(pass, queries(), parameters, x);
}

void AttentionBlock::compute(const PassContext& pass, const Columns& columns, const BlockParameters& parameters,
                             const float* x) {
  float* normed = pass.scratch.normed.data();
  const Values rows = qkv(pass) + pass.batch.tokens * columns.first;
  for_each_chunk(pass, [&](Chunk chunk) {
    const Values stored = rows + chunk.begin * columns.width;
    float* product = stored.element() == Element::fp32 ? stored.fp32() : pass.scratch.product.data();
    norm_.forward(pass, chunk, parameters.values, x + chunk.begin * width_, normed);
    multiply_forward(pass, chunk.rows, columns.width, width_, normed,
                     parameters.weight(qkv_weight_ + columns.first * width_, width_), product);
    // Heads of q and k are neighbours, before those of v. GPT-2 has learned positions, and no table of angles.
    pass.ops.rope_forward(pass.stream, chunk.rows, columns.width, columns.rotated_heads, head_size_,
                          pass.batch.positions + chunk.begin, pass.batch.cosine, pass.batch.sine,
                          family_ == ModelFamily::gpt2 ? parameters.values + qkv_bias_ + columns.first : nullptr,
                          product, stored);
  });
}

void AttentionBlock::forward(const PassContext& pass, Forward purpose, const BlockParameters& parameters,
                             const float* x, float* y) {
  compute_qkv(pass, purpose, parameters, x);
  if (pass.batch.range == nullptr) {
    const Qkv<Values> own = split(pass.batch, qkv(pass));
    pass.ops.attention_forward(pass.stream, shape(pass.batch), own.q, own.k, own.v, attended(pass), log_sum_exp(pass),
                               pass.scratch.attention.data());
  } else {
    attend_ranges(pass);
    if (purpose == Forward::alone) pass.exchange->release(layer_);
  }
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    multiply_forward(pass, chunk.rows, width_, width_, attended(pass) + first, parameters.weight(o_weight_, width_),
                     y + first);
    pass.ops.residual_forward(pass.stream, chunk.rows, width_, x + first,
                              family_ == ModelFamily::gpt2 ? parameters.values + o_bias_ : nullptr, y + first);
  });
}

void AttentionBlock::attend_ranges(const PassContext& pass) {
  const GangRange& range = *pass.batch.range;
  const AttentionShape own_shape = shape(pass.batch);
  const Qkv<Values> own = split(pass.batch, qkv(pass));
  const AttentionState state{.sums = pass.scratch.d_attended.data(),
                             .maxima = pass.scratch.maxima.data(),
                             .divisors = pass.scratch.divisors.data()};
  const auto attend = [&](const AttentionSegment& segment, ConstValues k, ConstValues v) {
    pass.ops.attention_segment_forward(pass.stream, own_shape, segment, own.q, k, v, state,
                                       pass.scratch.attention.data());
  };
  attend({.keys = range.tokens(), .causal = true, .first = true}, own.k, own.v);
  for (int64_t member = range.member; member-- > 0;) {
    const ConstValues earlier = pass.exchange->wait_earlier(layer_, member);
    attend({.keys = range.tokens_of(member)}, earlier, earlier + kv_width());
  }
  pass.ops.attention_segment_finish(pass.stream, own_shape, state, attended(pass), log_sum_exp(pass));
}

void AttentionBlock::backward(const PassContext& pass, const BlockParameters& parameters, const float* x,
                              float* d_residual, float* gradients) {
  if (recompute_ == Recompute::inner) compute_qkv(pass, Forward::repeated, parameters, x);
  backward_output(pass, parameters, d_residual, gradients);
  if (pass.batch.range == nullptr) {
    const Qkv<Values> own = split(pass.batch, qkv(pass));
    const Qkv<float*> d_own = split(pass.batch, pass.scratch.d_qkv.data());
    pass.ops.attention_backward(pass.stream, shape(pass.batch), own.q, own.k, own.v, attended(pass), log_sum_exp(pass),
                                pass.scratch.d_attended.data(), d_own.q, d_own.k, d_own.v,
                                pass.scratch.attention.data());
    backward(pass, all(), parameters, x, d_residual, gradients);
    return;
  }
  backward_ranges(pass);
  backward(pass, queries(), parameters, x, d_residual, gradients);
  add_later(pass);
  backward(pass, keys_values(), parameters, x, d_residual, gradients);
  pass.exchange->release(layer_);
}

void AttentionBlock::backward_output(const PassContext& pass, const BlockParameters& parameters,
                                     const float* d_residual, float* gradients) {
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    const float* dy = d_residual + first;
    if (family_ == ModelFamily::gpt2) {
      pass.ops.bias_backward(pass.stream, chunk.rows, width_, dy, gradients + o_bias_);
    }
    multiply_weight_gradient(pass, chunk.rows, width_, width_, dy, attended(pass) + first, gradients + o_weight_);
    multiply_input_gradient(pass, chunk.rows, width_, width_, dy, parameters.weight(o_weight_, width_),
                            pass.scratch.d_attended.data() + first);
  });
}

void AttentionBlock::backward_ranges(const PassContext& pass) {
  const GangRange& range = *pass.batch.range;
  const AttentionShape own_shape = shape(pass.batch);
  const Qkv<Values> own = split(pass.batch, qkv(pass));
  const Qkv<float*> d_own = split(pass.batch, pass.scratch.d_qkv.data());
  const auto attend = [&](const AttentionSegment& segment, ConstValues k, ConstValues v, float* dk, float* dv) {
    pass.ops.attention_segment_backward(pass.stream, own_shape, segment, own.q, k, v, attended(pass), log_sum_exp(pass),
                                        pass.scratch.d_attended.data(), d_own.q, dk, dv, pass.scratch.attention.data());
  };
  float* d_earlier = pass.scratch.d_earlier.data();
  for (int64_t member = 0; member < range.member; ++member) {
    const ConstValues earlier = pass.exchange->wait_earlier(layer_, member);
    attend({.keys = range.tokens_of(member), .first = member == 0}, earlier, earlier + kv_width(), d_earlier,
           d_earlier + kv_width());
    pass.wait();
    pass.exchange->send_gradients(layer_, member, d_earlier);
  }
  attend({.keys = range.tokens(), .causal = true, .first = range.member == 0}, own.k, own.v, d_own.k, d_own.v);
}

void AttentionBlock::add_later(const PassContext& pass) {
  const GangRange& range = *pass.batch.range;
  const Qkv<float*> d_own = split(pass.batch, pass.scratch.d_qkv.data());
  for (int64_t member = range.member + 1; member < range.members(); ++member) {
    const float* later = pass.exchange->wait_later(layer_, member);
    pass.ops.residual_forward(pass.stream, range.tokens(), keys_values().width, later, nullptr, d_own.k);
  }
  pass.wait();
}

void AttentionBlock::backward(const PassContext& pass, const Columns& columns, const BlockParameters& parameters,
                              const float* x, float* d_residual, float* gradients) {
  float* normed = pass.scratch.normed.data();
  float* d_normed = pass.scratch.d_normed.data();
  float* rows = pass.scratch.d_qkv.data() + pass.batch.tokens * columns.first;
  const int64_t weight = qkv_weight_ + columns.first * width_;
  for_each_chunk(pass, [&](Chunk chunk) {
    const int64_t first = chunk.begin * width_;
    float* d_columns = rows + chunk.begin * columns.width;
    if (family_ == ModelFamily::gpt2) {
      pass.ops.bias_backward(pass.stream, chunk.rows, columns.width, d_columns, gradients + qkv_bias_ + columns.first);
    } else {
      pass.ops.rope_backward(pass.stream, chunk.rows, columns.width, columns.rotated_heads, head_size_,
                             pass.batch.positions + chunk.begin, pass.batch.cosine, pass.batch.sine, d_columns);
    }
    norm_.forward(pass, chunk, parameters.values, x + first, normed);
    multiply_weight_gradient(pass, chunk.rows, columns.width, width_, d_columns, normed, gradients + weight);
    multiply_input_gradient(pass, chunk.rows, columns.width, width_, d_columns, parameters.weight(weight, width_),
                            d_normed);
    // Of what the norm's backward pass adds, the columns' shares add up.
    norm_.backward(pass, chunk, parameters.values, x + first, d_normed, d_residual + first, gradients);
  });
}

}  // namespace hat
