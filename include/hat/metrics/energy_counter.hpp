#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace hat {

/// The energy counters of a node's processors and memory (RAPL, through Linux' powercap): packages, and their dram
/// where it is counted apart. Counters run over; `update` at least every few minutes keeps up with them.
class EnergyCounter {
 public:
  /// `folder`: where the kernel shows the counters. Those that cannot be read (most kernels ask for root) are left out.
  explicit EnergyCounter(const std::filesystem::path& folder = "/sys/class/powercap");

  /// Adds what was used since the last call.
  void update();
  /// Joules between construction and the last update; empty when no counter is readable.
  std::optional<double> joules() const;

 private:
  struct Domain {
    std::filesystem::path file;
    int64_t range_uj = 0;  // where it runs over; 0: not known
    int64_t last_uj = 0;
  };
  std::vector<Domain> domains_;
  double joules_ = 0;
};

}  // namespace hat
