#include "../../kernels/cuda_operations.hpp"
#include "cuda_emulation.hpp"
#include "cuda_kernels.hpp"
#include "hat/device/cuda_stream.hpp"
#include "kernel_support.hpp"

namespace hat::test {

namespace {

/// The kernel, and the wait for it.
template <auto kKernel>
struct AndWait;
template <class... Arguments, void (*kKernel)(const Stream&, Arguments...)>
struct AndWait<kKernel> {
  static void call(const Stream& stream, Arguments... arguments) {
    kKernel(stream, arguments...);
    stream.cuda()->synchronize();
  }
};

const Operations& emulated() {
  static const Operations table = [] {
    Operations all = cuda::cuda_operations();
    all.gemm = AndWait<cuda::gemm>::call;
    all.embedding_forward = AndWait<cuda::embedding_forward>::call;
    all.embedding_backward = AndWait<cuda::embedding_backward>::call;
    all.rmsnorm_forward = AndWait<cuda::rmsnorm_forward>::call;
    all.rmsnorm_backward = AndWait<cuda::rmsnorm_backward>::call;
    all.layernorm_forward = AndWait<cuda::layernorm_forward>::call;
    all.layernorm_backward = AndWait<cuda::layernorm_backward>::call;
    all.rope_table = AndWait<cuda::rope_table>::call;
    all.rope_forward = AndWait<cuda::rope_forward>::call;
    all.rope_backward = AndWait<cuda::rope_backward>::call;
    all.attention_forward = AndWait<cuda::attention_forward>::call;
    all.attention_backward = AndWait<cuda::attention_backward>::call;
    all.attention_segment_forward = AndWait<cuda::attention_segment_forward>::call;
    all.attention_segment_finish = AndWait<cuda::attention_segment_finish>::call;
    all.attention_segment_backward = AndWait<cuda::attention_segment_backward>::call;
    all.swiglu_forward = AndWait<cuda::swiglu_forward>::call;
    all.swiglu_backward = AndWait<cuda::swiglu_backward>::call;
    all.gelu_forward = AndWait<cuda::gelu_forward>::call;
    all.gelu_backward = AndWait<cuda::gelu_backward>::call;
    all.bias_backward = AndWait<cuda::bias_backward>::call;
    all.residual_forward = AndWait<cuda::residual_forward>::call;
    all.cross_entropy = AndWait<cuda::cross_entropy>::call;
    all.round = AndWait<cuda::round>::call;
    all.fill = AndWait<cuda::fill>::call;
    all.scale = AndWait<cuda::scale>::call;
    all.sum_of_squares = AndWait<cuda::sum_of_squares>::call;
    all.count_sketch = AndWait<cuda::count_sketch>::call;
    return all;
  }();
  return table;
}

template <cuda_emulation::Order kOrder>
const Stream& stream_in() {
  static CudaStream cuda(0);
  static const Stream stream(Device{.kind = DeviceKind::cuda, .index = 0, .threads = 1}, cuda);
  cuda_emulation::set_order(kOrder);
  return stream;
}

}  // namespace

std::vector<KernelTarget> kernel_targets() {
  using cuda_emulation::Order;
  return {
      {.name = "ascending", .operations = &emulated(), .stream = stream_in<Order::ascending>, .speed = Speed::emulated},
      {.name = "descending",
       .operations = &emulated(),
       .stream = stream_in<Order::descending>,
       .speed = Speed::emulated},
      {.name = "shuffled", .operations = &emulated(), .stream = stream_in<Order::shuffled>, .speed = Speed::emulated}};
}

}  // namespace hat::test
