#include "commands/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "hat/core/proc.hpp"

namespace hat {

namespace {

std::string vector_instructions() {
  static constexpr std::array<const char*, 8> kOfInterest{"avx2",        "fma",      "avx512f", "avx512_bf16",
                                                          "avx512_vnni", "amx_bf16", "asimd",   "sve"};
  std::string flags = proc_value("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = proc_value("/proc/cpuinfo", "Features");
  std::istringstream words(flags);
  std::string found;
  for (std::string word; words >> word;) {
    if (std::find(kOfInterest.begin(), kOfInterest.end(), word) == kOfInterest.end()) continue;
    found += (found.empty() ? "" : " ") + word;
  }
  return found;
}

int count_numa_nodes() {
  std::error_code error;
  int nodes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    const bool is_node = name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos;
    nodes += is_node && name.size() > 4 ? 1 : 0;
  }
  return nodes;
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) machine.hostname = name.data();
  machine.processor = proc_value("/proc/cpuinfo", "model name");
  machine.cores_here = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  machine.cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : machine.cores_here;
  machine.memory_bytes = proc_bytes("/proc/meminfo", "MemTotal");
  machine.available_bytes = proc_bytes("/proc/meminfo", "MemAvailable");
  machine.numa_nodes = count_numa_nodes();
  machine.vector_instructions = vector_instructions();
  return machine;
}

}  // namespace hat
