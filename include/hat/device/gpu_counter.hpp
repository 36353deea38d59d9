#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hat {

/// Energy and utilization of one NVIDIA GPU, from the driver's management library (NVML), which is loaded if it is
/// there. What cannot be read has no figure; nothing is thrown.
class GpuCounter {
 public:
  /// `id`: the GPU's UUID in 32 hexadecimal digits, as CUDA tells it. `library`: where NVML is.
  explicit GpuCounter(const std::string& id, const char* library = "libnvidia-ml.so.1");
  ~GpuCounter();
  GpuCounter(GpuCounter&&) noexcept;
  GpuCounter& operator=(GpuCounter&&) noexcept;

  /// Reads the counters.
  void update();
  /// Joules between construction and the last update.
  std::optional<double> joules() const;
  /// Mean over the updates of the fraction of time in which a kernel ran; each update sees the second before it at
  /// most.
  std::optional<double> utilization() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;  // null: no figures
  double joules_ = 0;
  uint64_t last_mj_ = 0;
  bool has_energy_ = false;
  double sum_of_utilizations_ = 0;
  int64_t utilizations_ = 0;
};

}  // namespace hat
