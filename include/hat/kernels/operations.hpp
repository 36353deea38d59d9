#pragma once
#include <cstdint>

#include "hat/device/device.hpp"
#include "hat/kernels/values.hpp"

namespace hat {

// Shapes are written (rows, columns), row-major. T: tokens of a packed batch, C: width, H: query heads, K: key/value
// heads, D: head size, F: MLP width, V: vocabulary. All pointers are memory of the stream's device.

enum class Transpose { no, yes };
enum class CrossEntropyOutput { loss, loss_and_gradient };

inline constexpr int64_t kSketchBuckets = 1024;

/// Packed documents as the attention sees them. Document i is rows [offsets[i], offsets[i + 1]).
struct AttentionShape {
  int64_t tokens = 0;  ///< T
  int64_t documents = 0;
  const int32_t* offsets = nullptr;  ///< (documents + 1)
  int64_t heads = 0;                 ///< H
  int64_t kv_heads = 0;              ///< K, divides H: query heads [g H/K, (g + 1) H/K) use key/value head g
  int64_t head_size = 0;             ///< D
  int64_t q_stride = 0;              ///< elements between two rows of q (and of its gradient)
  int64_t kv_stride = 0;             ///< the same of k and of v
};

/// Keys and values that the queries of one range of a document meet: those of an earlier range, all of which they see,
/// or those of their own, as far as these are not younger. A range meets the segments in any order, one per call.
struct AttentionSegment {
  int64_t keys = 0;     ///< S, rows of k and v
  bool causal = false;  ///< the range's own: keys and queries are the same tokens
  bool first = false;   ///< the range met none before: what is added up over segments begins with this one
};

/// What the queries of a range know of the segments that they met: the running softmax.
struct AttentionState {
  float* sums = nullptr;      ///< (T, H D) of exp(score - maximum) v
  float* maxima = nullptr;    ///< (H, T) of the scores, before their scaling
  float* divisors = nullptr;  ///< (H, T) sums of exp(score - maximum)
};

/// The operations of one kind of device: what the model is written in. Every device offers this table with these
/// signatures. Kernels check nothing; "+=" in a comment means that the result is added to what is there. Results do not
/// depend on the number of threads, except those of gemm.
///
/// Arguments of type Values hold fp32 or bf16 and are read and rounded as such; all arithmetic but that of products in
/// bf16 is fp32.
struct Operations {
  /// c (m, n) = alpha op(a) (m, k) op(b) (k, n) + beta c; beta = 0 never reads c. k = 0 only with beta = 1.
  /// `arithmetic` fp32: both operands hold fp32, which Device::tf32 may round. bf16: operands of either type, rounded
  /// to bf16; sums are fp32.
  void (*gemm)(const Stream&, Element arithmetic, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
               int64_t k, float alpha, ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c,
               int64_t ldc);

  /// What follows is about memory that a stream keeps for operations beside their arguments; on the CPU there is none.
  ///
  /// Bytes that gemm takes at most, with operands that hold a and b.
  int64_t (*gemm_scratch)(Element arithmetic, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                          int64_t k, Element a, Element b);
  /// Bytes that sums over T rows of N columns take (bias_backward, the weights of norms).
  int64_t (*column_sums_scratch)(int64_t T, int64_t N);
  /// From now on operations that need up to so many allocate nothing: an allocation waits for all that the device does,
  /// also for sums over workers.
  void (*reserve)(const Stream&, int64_t bytes);

  /// y (T, C) = table[tokens[t]] + position_table[positions[t]]; without positions if position_table is null.
  void (*embedding_forward)(const Stream&, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                            const float* table, const float* position_table, float* y);
  /// d_table[tokens[t]] += dy[t], d_position_table[positions[t]] += dy[t] (unless null).
  void (*embedding_backward)(const Stream&, int64_t T, int64_t C, const int32_t* tokens, const int32_t* positions,
                             const float* dy, float* d_table, float* d_position_table);

  /// y = weight x / r with r = sqrt(mean(x^2) + epsilon) over the C columns; inverse_rms (T) = 1 / r is kept for the
  /// backward pass. Zhang, Sennrich 2019.
  void (*rmsnorm_forward)(const Stream&, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                          float* y, float* inverse_rms);
  /// dx += and d_weight += .
  void (*rmsnorm_backward)(const Stream&, int64_t T, int64_t C, const float* x, const float* weight,
                           const float* inverse_rms, const float* dy, float* dx, float* d_weight);

  /// y = weight (x - mean) / s + bias with s = sqrt(variance + epsilon); mean (T) and inverse_std (T) = 1 / s are kept.
  /// Ba, Kiros, Hinton 2016.
  void (*layernorm_forward)(const Stream&, int64_t T, int64_t C, float epsilon, const float* x, const float* weight,
                            const float* bias, float* y, float* mean, float* inverse_std);
  /// dx +=, d_weight += and d_bias += .
  void (*layernorm_backward)(const Stream&, int64_t T, int64_t C, const float* x, const float* weight,
                             const float* mean, const float* inverse_std, const float* dy, float* dx, float* d_weight,
                             float* d_bias);

  /// cosine and sine (length, D / 2) of position * base^(-2 i / D), computed in double.
  void (*rope_table)(const Stream&, int64_t length, int64_t D, double base, float* cosine, float* sine);
  /// y (T, N) = x + bias, then the pairs (i, i + D / 2) of the first `heads` heads of every row rotated by the angles
  /// of positions[t]. No bias if it is null; no rotation if cosine is null. y may be x. Su et al. 2021, in the "rotate
  /// half" pairing of Llama.
  void (*rope_forward)(const Stream&, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                       const float* cosine, const float* sine, const float* bias, const float* x, Values y);
  /// The inverse (transposed) rotation of the same heads, in place.
  void (*rope_backward)(const Stream&, int64_t T, int64_t N, int64_t heads, int64_t D, const int32_t* positions,
                        const float* cosine, const float* sine, float* dx);

  /// Floats of the workspace that the two attention operations need: tiles for each thread, and a few numbers for each
  /// document and each tile of queries.
  int64_t (*attention_workspace)(const Stream&, const AttentionShape& shape);
  /// out (T, H D) = softmax(q k^T / sqrt(D), causal, inside each document) v; log_sum_exp (H, T) is kept.
  /// Tiled, with a running maximum and sum per row (Milakov, Gimelshein 2018; Dao et al. 2022): no matrix of the size
  /// of a document squared exists. Work follows the causal area. A document's result depends on no other document.
  /// q, k, v and out have one element type. With bf16 the factors of every product are bf16, which rounds the
  /// probabilities; all sums and the softmax are fp32, and out is rounded once, at the end. D is even.
  void (*attention_forward)(const Stream&, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                            Values out, float* log_sum_exp, float* workspace);
  /// dq, dk, dv (strided as q, k, v) = gradients; scores are computed again from q, k and log_sum_exp. With bf16 the
  /// products see d_out, the probabilities and the gradients of the scores rounded to bf16.
  void (*attention_backward)(const Stream&, const AttentionShape& shape, ConstValues q, ConstValues k, ConstValues v,
                             ConstValues out, const float* log_sum_exp, const float* d_out, float* dq, float* dk,
                             float* dv, float* workspace);

  /// The same for one range of a document, whose keys and values come in segments from wherever they are. `shape` is
  /// that of the range: one document. Floats of the workspace for segments of up to `keys` rows.
  int64_t (*attention_segment_workspace)(const Stream&, const AttentionShape& shape, int64_t keys);
  /// Brings `state` from the segments before to those with this one. The state of the first is only written.
  void (*attention_segment_forward)(const Stream&, const AttentionShape& shape, const AttentionSegment& segment,
                                    ConstValues q, ConstValues k, ConstValues v, const AttentionState& state,
                                    float* workspace);
  /// out (T, H D) and log_sum_exp (H, T) from the state after the last segment.
  void (*attention_segment_finish)(const Stream&, const AttentionShape& shape, const AttentionState& state, Values out,
                                   float* log_sum_exp);
  /// dq (T, strided as q) = the first segment's share of the gradient, or += those of others; dk, dv (S, strided as k,
  /// v) = the range's share of the gradient of the segment. out and log_sum_exp are those of all segments.
  void (*attention_segment_backward)(const Stream&, const AttentionShape& shape, const AttentionSegment& segment,
                                     ConstValues q, ConstValues k, ConstValues v, ConstValues out,
                                     const float* log_sum_exp, const float* d_out, float* dq, float* dk, float* dv,
                                     float* workspace);

  /// gate_up (T, 2 F) = x, whose first F columns are the gate; y (T, F) = silu(gate) up of what gate_up holds. gate_up
  /// may be x (fp32), or null: then it is not kept, and y is the same all the same. Shazeer 2020.
  void (*swiglu_forward)(const Stream&, int64_t T, int64_t F, const float* x, Values gate_up, float* y);
  /// d_gate_up (T, 2 F) = gradient, and y (T, F) once more. d_gate_up may be gate_up (fp32), y may be dy.
  void (*swiglu_backward)(const Stream&, int64_t T, int64_t F, ConstValues gate_up, const float* dy, float* d_gate_up,
                          float* y);

  /// up (T, F) = x + bias, y (T, F) = gelu(what up holds), tanh form. up may be x (fp32) or null, as above. Hendrycks,
  /// Gimpel 2016.
  void (*gelu_forward)(const Stream&, int64_t T, int64_t F, const float* x, const float* bias, Values up, float* y);
  /// d_up (T, F) = gradient, and y once more. d_up may be up (fp32), y may be dy.
  void (*gelu_backward)(const Stream&, int64_t T, int64_t F, ConstValues up, const float* dy, float* d_up, float* y);

  /// d_bias (N) += column sums of dy (T, N).
  void (*bias_backward)(const Stream&, int64_t T, int64_t N, const float* dy, float* d_bias);
  /// y (T, N) += x + bias: a branch joins the residual stream. No bias if it is null.
  void (*residual_forward)(const Stream&, int64_t T, int64_t N, const float* x, const float* bias, float* y);

  /// row_nats (T) = log(sum exp logits) - logits[target], 0 where the target is negative. With loss_and_gradient,
  /// logits (T, V, rows `stride` apart) become softmax - one_hot(target), rows of zeros where the target is negative;
  /// with loss alone their contents are lost.
  void (*cross_entropy)(const Stream&, CrossEntropyOutput output, int64_t T, int64_t V, int64_t stride,
                        const int32_t* targets, float* logits, double* row_nats);

  /// y (n) = x, rounded as products in bf16 round their operands.
  void (*round)(const Stream&, int64_t n, const float* x, bfloat16* y);
  void (*fill)(const Stream&, int64_t n, float value, float* y);   ///< y = value
  void (*scale)(const Stream&, int64_t n, float alpha, float* y);  ///< y *= alpha
  /// *sum = sum of x^2, added in double.
  void (*sum_of_squares)(const Stream&, int64_t n, const float* x, double* sum);
  /// sketch (kSketchBuckets) = S x and *sum_of_squares as above, in one pass. S is linear and the same everywhere: each
  /// element is added with a random sign to one bucket, so sketches of sums and differences are sums and differences of
  /// sketches. |S x|^2 is |x|^2 on average with a relative standard error of at most sqrt(2 / kSketchBuckets) = 4.4 %,
  /// and so are inner products, relative to |x| |y|. Charikar, Chen, Farach-Colton 2002; Thorup, Zhang 2004.
  void (*count_sketch)(const Stream&, int64_t n, const float* x, float* sketch, double* sum_of_squares);
};

/// The table for `kind`. Throws Error where HAT was built without it.
const Operations& operations(DeviceKind kind);

}  // namespace hat
