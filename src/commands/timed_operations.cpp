#include "commands/timed_operations.hpp"

#include "hat/core/clock.hpp"

namespace hat {

namespace {

/// An entry of the table that measures itself around the real one.
template <auto kEntry>
struct Timed;
template <typename Result, typename... Arguments, Result (*Operations::*kEntry)(Arguments...)>
struct Timed<kEntry> {
  static inline double seconds = 0.0;

  struct Stopwatch {
    double start_s = now_s();
    ~Stopwatch() { seconds += now_s() - start_s; }
  };

  static Result call(Arguments... arguments) {
    const Stopwatch stopwatch;
    return (operations(DeviceKind::cpu).*kEntry)(arguments...);
  }
};

}  // namespace

const Operations& timed_operations() {
  static constexpr Operations kTimed = {
      .gemm = Timed<&Operations::gemm>::call,
      .gemm_scratch = Timed<&Operations::gemm_scratch>::call,
      .column_sums_scratch = Timed<&Operations::column_sums_scratch>::call,
      .reserve = Timed<&Operations::reserve>::call,
      .embedding_forward = Timed<&Operations::embedding_forward>::call,
      .embedding_backward = Timed<&Operations::embedding_backward>::call,
      .rmsnorm_forward = Timed<&Operations::rmsnorm_forward>::call,
      .rmsnorm_backward = Timed<&Operations::rmsnorm_backward>::call,
      .layernorm_forward = Timed<&Operations::layernorm_forward>::call,
      .layernorm_backward = Timed<&Operations::layernorm_backward>::call,
      .rope_table = Timed<&Operations::rope_table>::call,
      .rope_forward = Timed<&Operations::rope_forward>::call,
      .rope_backward = Timed<&Operations::rope_backward>::call,
      .attention_workspace = Timed<&Operations::attention_workspace>::call,
      .attention_forward = Timed<&Operations::attention_forward>::call,
      .attention_backward = Timed<&Operations::attention_backward>::call,
      .attention_segment_workspace = Timed<&Operations::attention_segment_workspace>::call,
      .attention_segment_forward = Timed<&Operations::attention_segment_forward>::call,
      .attention_segment_finish = Timed<&Operations::attention_segment_finish>::call,
      .attention_segment_backward = Timed<&Operations::attention_segment_backward>::call,
      .swiglu_forward = Timed<&Operations::swiglu_forward>::call,
      .swiglu_backward = Timed<&Operations::swiglu_backward>::call,
      .gelu_forward = Timed<&Operations::gelu_forward>::call,
      .gelu_backward = Timed<&Operations::gelu_backward>::call,
      .bias_backward = Timed<&Operations::bias_backward>::call,
      .residual_forward = Timed<&Operations::residual_forward>::call,
      .cross_entropy = Timed<&Operations::cross_entropy>::call,
      .round = Timed<&Operations::round>::call,
      .fill = Timed<&Operations::fill>::call,
      .scale = Timed<&Operations::scale>::call,
      .sum_of_squares = Timed<&Operations::sum_of_squares>::call,
      .count_sketch = Timed<&Operations::count_sketch>::call,
  };
  return kTimed;
}

OperationSeconds operation_seconds() {
  return {.products = Timed<&Operations::gemm>::seconds,
          .attention = Timed<&Operations::attention_forward>::seconds +
                       Timed<&Operations::attention_backward>::seconds +
                       Timed<&Operations::attention_segment_forward>::seconds +
                       Timed<&Operations::attention_segment_finish>::seconds +
                       Timed<&Operations::attention_segment_backward>::seconds};
}

std::vector<std::pair<const char*, double>> seconds_by_operation() {
  std::vector<std::pair<const char*, double>> called;
  for (const auto& entry : std::initializer_list<std::pair<const char*, double>>{
           {"gemm", Timed<&Operations::gemm>::seconds},
           {"embedding_forward", Timed<&Operations::embedding_forward>::seconds},
           {"embedding_backward", Timed<&Operations::embedding_backward>::seconds},
           {"rmsnorm_forward", Timed<&Operations::rmsnorm_forward>::seconds},
           {"rmsnorm_backward", Timed<&Operations::rmsnorm_backward>::seconds},
           {"layernorm_forward", Timed<&Operations::layernorm_forward>::seconds},
           {"layernorm_backward", Timed<&Operations::layernorm_backward>::seconds},
           {"rope_table", Timed<&Operations::rope_table>::seconds},
           {"rope_forward", Timed<&Operations::rope_forward>::seconds},
           {"rope_backward", Timed<&Operations::rope_backward>::seconds},
           {"attention_workspace", Timed<&Operations::attention_workspace>::seconds},
           {"attention_forward", Timed<&Operations::attention_forward>::seconds},
           {"attention_backward", Timed<&Operations::attention_backward>::seconds},
           {"attention_segment_workspace", Timed<&Operations::attention_segment_workspace>::seconds},
           {"attention_segment_forward", Timed<&Operations::attention_segment_forward>::seconds},
           {"attention_segment_finish", Timed<&Operations::attention_segment_finish>::seconds},
           {"attention_segment_backward", Timed<&Operations::attention_segment_backward>::seconds},
           {"swiglu_forward", Timed<&Operations::swiglu_forward>::seconds},
           {"swiglu_backward", Timed<&Operations::swiglu_backward>::seconds},
           {"gelu_forward", Timed<&Operations::gelu_forward>::seconds},
           {"gelu_backward", Timed<&Operations::gelu_backward>::seconds},
           {"bias_backward", Timed<&Operations::bias_backward>::seconds},
           {"residual_forward", Timed<&Operations::residual_forward>::seconds},
           {"cross_entropy", Timed<&Operations::cross_entropy>::seconds},
           {"round", Timed<&Operations::round>::seconds},
           {"fill", Timed<&Operations::fill>::seconds},
           {"scale", Timed<&Operations::scale>::seconds},
           {"sum_of_squares", Timed<&Operations::sum_of_squares>::seconds},
           {"count_sketch", Timed<&Operations::count_sketch>::seconds}}) {
    if (entry.second > 0.0) called.push_back(entry);
  }
  return called;
}

}  // namespace hat
