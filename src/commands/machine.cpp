#include "commands/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace hat {

namespace {

/// What stands behind "key ... :" in the first such line of a file of /proc.
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;  // a longer key
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t proc_kib(const char* path, const std::string& key) {
  std::istringstream text(proc_value(path, key));
  int64_t kib = 0;
  return text >> kib ? kib * 1024 : 0;
}

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
  machine.memory_bytes = proc_kib("/proc/meminfo", "MemTotal");
  machine.available_bytes = proc_kib("/proc/meminfo", "MemAvailable");
  machine.numa_nodes = count_numa_nodes();
  machine.vector_instructions = vector_instructions();
  return machine;
}

int64_t resident_bytes() { return proc_kib("/proc/self/status", "VmRSS"); }
int64_t peak_resident_bytes() { return proc_kib("/proc/self/status", "VmHWM"); }

}  // namespace hat
