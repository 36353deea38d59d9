#include "commands/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
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

/// Names of one version's files.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* cache;  ///< its line in memory.stat
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

std::optional<int64_t> number_in(const std::filesystem::path& file, const std::string& line = "") {
  std::ifstream text(file);
  std::string word;
  while (!line.empty() && text >> word && word != line) continue;
  int64_t number = 0;
  return text >> number ? std::optional(number) : std::nullopt;  // "max" is no number
}

std::optional<int64_t> left_in_group(const std::filesystem::path& group, const GroupFiles& files) {
  const auto limit = number_in(group / files.limit);
  const auto used = number_in(group / files.used);
  constexpr int64_t kUnlimited = int64_t{1} << 60;  // how version 1 says so, about
  if (!limit || !used || *limit >= kUnlimited) return std::nullopt;
  return std::max<int64_t>(0, *limit - *used + number_in(group / "memory.stat", files.cache).value_or(0));
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

std::optional<int64_t> memory_left_by_groups(const std::filesystem::path& membership,
                                             const std::filesystem::path& root) {
  std::optional<int64_t> least;
  std::ifstream lines(membership);
  // Lines are number:controllers:path; version 2 has one without controllers.
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version2 = controllers.empty();
    if (!is_version2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::filesystem::path top = is_version2 ? root : root / "memory";
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    while (true) {
      const auto left = left_in_group(top / group, is_version2 ? kVersion2 : kVersion1);
      if (left) least = std::min(least.value_or(*left), *left);
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return least;
}

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
  if (const auto left = memory_left_by_groups("/proc/self/cgroup", "/sys/fs/cgroup")) {
    machine.available_bytes = std::min(machine.available_bytes, *left);
  }
  machine.numa_nodes = count_numa_nodes();
  machine.vector_instructions = vector_instructions();
  return machine;
}

}  // namespace hat
