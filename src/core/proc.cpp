#include "hat/core/proc.hpp"

#include <fstream>
#include <sstream>

namespace hat {

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

int64_t proc_bytes(const char* path, const std::string& key) {
  std::istringstream text(proc_value(path, key));
  int64_t kib = 0;
  return text >> kib ? kib * 1024 : 0;
}

int64_t resident_bytes() { return proc_bytes("/proc/self/status", "VmRSS"); }
int64_t peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM"); }
int64_t shared_resident_bytes() { return proc_bytes("/proc/self/status", "RssShmem"); }

}  // namespace hat
