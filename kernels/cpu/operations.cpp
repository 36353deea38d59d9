#include "hat/kernels/operations.hpp"

#include "../cuda_operations.hpp"
#include "cpu_kernels.hpp"

namespace hat {

const Operations& operations(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return cuda::cuda_operations();
  static constexpr Operations kCpu = {
      .gemm = cpu::gemm,
      .gemm_scratch = [](Element, Transpose, Transpose, int64_t, int64_t, int64_t, Element,
                         Element) { return int64_t{0}; },
      .column_sums_scratch = [](int64_t, int64_t) { return int64_t{0}; },
      .reserve = [](const Stream&, int64_t) {},
      .embedding_forward = cpu::embedding_forward,
      .embedding_backward = cpu::embedding_backward,
      .rmsnorm_forward = cpu::rmsnorm_forward,
      .rmsnorm_backward = cpu::rmsnorm_backward,
      .layernorm_forward = cpu::layernorm_forward,
      .layernorm_backward = cpu::layernorm_backward,
      .rope_table = cpu::rope_table,
      .rope_forward = cpu::rope_forward,
      .rope_backward = cpu::rope_backward,
      .attention_workspace = cpu::attention_workspace,
      .attention_forward = cpu::attention_forward,
      .attention_backward = cpu::attention_backward,
      .attention_segment_workspace = cpu::attention_segment_workspace,
      .attention_segment_forward = cpu::attention_segment_forward,
      .attention_segment_finish = cpu::attention_segment_finish,
      .attention_segment_backward = cpu::attention_segment_backward,
      .swiglu_forward = cpu::swiglu_forward,
      .swiglu_backward = cpu::swiglu_backward,
      .gelu_forward = cpu::gelu_forward,
      .gelu_backward = cpu::gelu_backward,
      .bias_backward = cpu::bias_backward,
      .residual_forward = cpu::residual_forward,
      .cross_entropy = cpu::cross_entropy,
      .round = cpu::round,
      .fill = cpu::fill,
      .scale = cpu::scale,
      .sum_of_squares = cpu::sum_of_squares,
      .count_sketch = cpu::count_sketch,
  };
  return kCpu;
}

}  // namespace hat
