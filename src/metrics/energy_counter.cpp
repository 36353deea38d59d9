#include "hat/metrics/energy_counter.hpp"

#include <fstream>
#include <string>

namespace hat {

namespace fs = std::filesystem;

namespace {
template <class T>
std::optional<T> read_value(const fs::path& path) {
  std::ifstream file(path);
  T value{};
  if (!(file >> value)) return std::nullopt;
  return value;
}

// "core" and "uncore" are parts of a package, "psys" (the whole machine) holds the packages.
bool is_counted(const fs::path& domain) {
  const std::string name = read_value<std::string>(domain / "name").value_or("");
  return name.starts_with("package") || name == "dram";
}
}  // namespace

EnergyCounter::EnergyCounter(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    // Plain "intel-rapl" has no counter; "intel-rapl-mmio:0" shows the package of "intel-rapl:0" again.
    if (!entry.path().filename().string().starts_with("intel-rapl:") || !is_counted(entry.path())) continue;
    const fs::path file = entry.path() / "energy_uj";
    const auto now = read_value<int64_t>(file);
    if (!now) continue;
    domains_.push_back({.file = file,
                        .range_uj = read_value<int64_t>(entry.path() / "max_energy_range_uj").value_or(0),
                        .last_uj = *now});
  }
}

void EnergyCounter::update() {
  constexpr double kJoule_uj = 1e6;
  for (Domain& domain : domains_) {
    const auto now = read_value<int64_t>(domain.file);
    if (!now) continue;
    int64_t used = *now - domain.last_uj;
    if (used < 0) used += domain.range_uj;
    domain.last_uj = *now;
    if (used > 0) joules_ += static_cast<double>(used) / kJoule_uj;
  }
}

std::optional<double> EnergyCounter::joules() const {
  if (domains_.empty()) return std::nullopt;
  return joules_;
}

}  // namespace hat
