#include "hat/config/emulation.hpp"

#include <algorithm>

#include "hat/core/error.hpp"
#include "hat/core/text.hpp"

namespace hat {

bool EmulatedDeviceConfig::is_disturbed(int worker) const {
  return std::any_of(disturbed.begin(), disturbed.end(),
                     [&](const std::string& name) { return name == "all" || name == std::to_string(worker); });
}

void check_emulated_ranks(const EmulationConfig& emulation, int workers, int nodes) {
  const EmulatedDeviceConfig& device = emulation.device;
  if (device.speed.size() != 1 && device.speed.size() != static_cast<size_t>(workers)) {
    throw KeyError("worker.emulate.speed", fmt::format("{} speeds for {}: give one for all, or one for each",
                                                       device.speed.size(), counted(workers, "worker")));
  }
  for (const std::string& name : device.disturbed) {
    if (name != "all" && std::stoll(name) >= workers) {
      throw KeyError("worker.emulate.disturbed",
                     fmt::format("there is no worker {}: {}, counted from 0", name, counted(workers, "worker")));
    }
  }
  if (emulation.network.on() && nodes > 1) {
    throw KeyError("comm.emulate.bandwidth",
                   fmt::format("an emulated network needs all ranks on one host, not on {}", nodes));
  }
}

}  // namespace hat
