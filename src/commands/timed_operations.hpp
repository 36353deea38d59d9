#pragma once
#include <utility>
#include <vector>

#include "hat/kernels/operations.hpp"

namespace hat {

/// The CPU's operations, each of which adds the time it takes to a counter of this process. For one computing thread.
const Operations& timed_operations();

/// Seconds since the process began.
struct OperationSeconds {
  double products = 0.0;   ///< gemm
  double attention = 0.0;  ///< attention_forward and attention_backward
};
OperationSeconds operation_seconds();

/// The same by entry of the table, those that were called only.
std::vector<std::pair<const char*, double>> seconds_by_operation();

}  // namespace hat
