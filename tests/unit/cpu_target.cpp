#include "kernel_support.hpp"

namespace hat::test {

std::vector<KernelTarget> kernel_targets() {
  static const Stream one(Device{.kind = DeviceKind::cpu, .index = 0, .threads = 1});
  static const Stream two(Device{.kind = DeviceKind::cpu, .index = 0, .threads = 2});
  static const Stream three(Device{.kind = DeviceKind::cpu, .index = 0, .threads = 3});
  const Operations* cpu = &operations(DeviceKind::cpu);
  return {{.name = "one_thread", .operations = cpu, .stream = []() -> const Stream& { return one; }},
          {.name = "two_threads", .operations = cpu, .stream = []() -> const Stream& { return two; }},
          {.name = "three_threads", .operations = cpu, .stream = []() -> const Stream& { return three; }}};
}

}  // namespace hat::test
