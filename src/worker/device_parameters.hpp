#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hat/device/device_buffer.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Parameters where a worker's device computes with them. Of each block there are two copies:
///   current   read by the pass under way
///   other     what has come for the next one is copied there, on a stream of its own
/// The compute stream waits for a copy, the host does not. On the CPU there are none: passes read the host's memory.
class DeviceParameters {
 public:
  /// `host`: memory that is not the worker's own, from which `bring` will copy.
  DeviceParameters(const RunPlan& plan, const Stream& compute, std::span<std::byte> host);

  /// Where kernels that are put into the compute stream from now on find this version of the block, until the next call
  /// for the block. `host` holds it until the pass has been waited for. No pass may be under way that used the version
  /// before.
  const float* bring(int64_t block, const float* host, int64_t version, bool predicted);
  /// The copy that `bring` will want begins now. `host` must not change before `wait`, or the end of the pass that it
  /// is for.
  void bring_ahead(int64_t block, const float* host, int64_t version, bool predicted);
  /// Until nothing is copied any more from what bring_ahead was given of the block.
  void wait(int64_t block);
  /// Gives the device's memory back; nothing may be under way there, and nothing can be brought any more.
  void free_device();
  bool on_host() const { return blocks_.empty(); }

 private:
  struct Copy {
    DeviceBuffer<float> values;
    int64_t version = -1;
    bool predicted = false;
    Event is_here;
  };
  struct Block {
    std::array<Copy, 2> copies;
    size_t current = 0;
    Event ahead;  // the last copy that bring_ahead began
    Copy& other() { return copies[1 - current]; }
  };

  /// False: it is there or on its way.
  bool copy(int64_t block, const float* host, int64_t version, bool predicted);

  const RunPlan& plan_;
  Stream compute_;
  Stream pull_;
  PinnedRange host_;
  std::vector<Block> blocks_;  // none on the CPU
};

}  // namespace hat
