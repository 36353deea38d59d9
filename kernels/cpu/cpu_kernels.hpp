#pragma once
#include "hat/kernels/operations.hpp"

/// The CPU's entries of `Operations`; see there for what each promises.
namespace hat::cpu {

void gemm(const Stream& stream, Element arithmetic, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
          int64_t k, float alpha, ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c,
          int64_t ldc);
void embedding_forward(const Stream& stream, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                       const float* table, const float* position_table, float* y);
void embedding_backward(const Stream& stream, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                        const float* dy, float* d_table, float* d_position_table);
void rmsnorm_forward(const Stream& stream, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                     float* y, float* inverse_rms);
void rmsnorm_backward(const Stream& stream, int64_t T, int64_t C, const float* x, const float* weight,
                      const float* inverse_rms, const float* dy, float* dx, float* d_weight);
void layernorm_forward(const Stream& stream, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                       const float* bias, float* y, float* mean, float* inverse_std);
void layernorm_backward(const Stream& stream, int64_t T, int64_t C, const float* x, const float* weight,
                        const float* mean, const float* inverse_std, const float* dy, float* dx, float* d_weight,
                        float* d_bias);
void rope_table(const Stream& stream, int64_t length, int64_t D, double base, float* cosine, float* sine);
void rope_forward(const Stream& stream, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                  const float* cosine, const float* sine, const float* bias, const float* x, Values y);
void rope_backward(const Stream& stream, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                   const float* cosine, const float* sine, float* dx);
int64_t attention_workspace(const Stream& stream, const AttentionShape& shape);
void attention_forward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                       Values out, float* log_sum_exp, float* workspace);
void attention_backward(const Stream& stream, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                        ConstValues out, const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv,
                        float* workspace);
int64_t attention_segment_workspace(const Stream& stream, const AttentionShape& shape, int64_t keys);
void attention_segment_forward(const Stream& stream, const AttentionShape& shape, const AttentionSegment& segment,
                               ConstValues q, ConstValues k, ConstValues v, const AttentionState& state,
                               float* workspace);
void attention_segment_finish(const Stream& stream, const AttentionShape& shape, const AttentionState& state,
                              Values out, float* log_sum_exp);
void attention_segment_backward(const Stream& stream, const AttentionShape& shape, const AttentionSegment& segment,
                                ConstValues q, ConstValues k, ConstValues v, ConstValues out, const float* log_sum_exp,
                                const float* d_out, float* dq, float* dk, float* dv, float* workspace);
void swiglu_forward(const Stream& stream, int64_t T, int64_t F, const float* x, Values gate_up, float* y);
void swiglu_backward(const Stream& stream, int64_t T, int64_t F, ConstValues gate_up, const float* dy, float* d_gate_up,
                     float* y);
void gelu_forward(const Stream& stream, int64_t T, int64_t F, const float* x, const float* bias, Values up, float* y);
void gelu_backward(const Stream& stream, int64_t T, int64_t F, ConstValues up, const float* dy, float* d_up, float* y);
void bias_backward(const Stream& stream, int64_t T, int64_t N, const float* dy, float* d_bias);
void residual_forward(const Stream& stream, int64_t T, int64_t N, const float* x, const float* bias, float* y);
void cross_entropy(const Stream& stream, CrossEntropyOutput output, int64_t T, int64_t V, int64_t stride,
                   const int32_t* targets, float* logits, double* row_nats);
void round(const Stream& stream, int64_t n, const float* x, bfloat16* y);
void fill(const Stream& stream, int64_t n, float value, float* y);
void scale(const Stream& stream, int64_t n, float alpha, float* y);
void sum_of_squares(const Stream& stream, int64_t n, const float* x, double* sum);
void count_sketch(const Stream& stream, int64_t n, const float* x, float* sketch, double* sum_of_squares);

}  // namespace hat::cpu
