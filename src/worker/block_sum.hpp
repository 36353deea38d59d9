#pragma once
#include <utility>
#include <variant>

#include "hat/comm/ring_all_reduce.hpp"
#include "hat/device/nccl_communicator.hpp"

namespace hat {

/// The sum of a barrier block's gradient over all workers, under way: by MPI in memory of the host, or by NCCL in that
/// of the devices.
class BlockSum {
 public:
  explicit BlockSum(RingAllReduce ring) : operation_(std::move(ring)) {}
  explicit BlockSum(NcclAllReduce sum) : operation_(std::move(sum)) {}

  /// Advances as far as it can without waiting. True once every worker's sum is there.
  bool step() {
    return std::visit([](auto& operation) { return operation.step(); }, operation_);
  }
  /// Every worker has entered.
  bool gathering() const {
    return std::visit([](const auto& operation) { return operation.gathering(); }, operation_);
  }

 private:
  std::variant<RingAllReduce, NcclAllReduce> operation_;
};

}  // namespace hat
