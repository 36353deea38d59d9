#include "../cuda_operations.hpp"
#include "cuda_kernels.hpp"

namespace hat::cuda {

const Operations& cuda_operations() {
  static constexpr Operations kCuda = {
      .gemm = gemm,
      .gemm_scratch = gemm_scratch,
      .column_sums_scratch = column_sums_scratch,
      .reserve = reserve,
      .embedding_forward = embedding_forward,
      .embedding_backward = embedding_backward,
      .rmsnorm_forward = rmsnorm_forward,
      .rmsnorm_backward = rmsnorm_backward,
      .layernorm_forward = layernorm_forward,
      .layernorm_backward = layernorm_backward,
      .rope_table = rope_table,
      .rope_forward = rope_forward,
      .rope_backward = rope_backward,
      .attention_workspace = attention_workspace,
      .attention_forward = attention_forward,
      .attention_backward = attention_backward,
      .attention_segment_workspace = attention_segment_workspace,
      .attention_segment_forward = attention_segment_forward,
      .attention_segment_finish = attention_segment_finish,
      .attention_segment_backward = attention_segment_backward,
      .swiglu_forward = swiglu_forward,
      .swiglu_backward = swiglu_backward,
      .gelu_forward = gelu_forward,
      .gelu_backward = gelu_backward,
      .bias_backward = bias_backward,
      .residual_forward = residual_forward,
      .cross_entropy = cross_entropy,
      .round = round,
      .fill = fill,
      .scale = scale,
      .sum_of_squares = sum_of_squares,
      .count_sketch = count_sketch,
  };
  return kCuda;
}

}  // namespace hat::cuda
