#include "hat/device/gpu_counter.hpp"

#include "device/dynamic_library.hpp"

namespace hat {

namespace {

// Of nvml.h, whose types and values these are: results are ints (0: success), devices are opaque pointers.
using NvmlDevice = void*;
struct NvmlUtilization {
  unsigned int gpu = 0;     // percent
  unsigned int memory = 0;  // percent
};

/// "GPU-01234567-89ab-cdef-0123-456789abcdef", as NVML names it.
std::string nvml_name(const std::string& id) {
  std::string name = "GPU-";
  for (size_t i = 0; i < id.size(); ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) name += '-';
    name += id[i];
  }
  return name;
}

}  // namespace

struct GpuCounter::Library {
  explicit Library(const char* path) : library{path} {}
  DynamicLibrary library;
  int (*shut_down)() = nullptr;
  int (*total_energy)(NvmlDevice, unsigned long long*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  NvmlDevice device = nullptr;
  bool is_initialized = false;

  ~Library() {
    if (is_initialized) static_cast<void>(shut_down());
  }

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Whether there is such a device.
  bool open(const std::string& name) {
    int (*initialize)() = nullptr;
    int (*find_device)(const char*, NvmlDevice*) = nullptr;
    if (!library.find(initialize, "nvmlInit_v2") || !library.find(shut_down, "nvmlShutdown") ||
        !library.find(find_device, "nvmlDeviceGetHandleByUUID")) {
      return false;
    }
    library.find(total_energy, "nvmlDeviceGetTotalEnergyConsumption");
    library.find(utilization, "nvmlDeviceGetUtilizationRates");
    is_initialized = initialize() == 0;
    return is_initialized && find_device(name.c_str(), &device) == 0;
  }

  std::optional<uint64_t> energy_mj() const {
    unsigned long long energy = 0;
    if (total_energy == nullptr || total_energy(device, &energy) != 0) return std::nullopt;
    return energy;
  }
};

GpuCounter::GpuCounter(const std::string& id, const char* library) : library_(std::make_unique<Library>(library)) {
  if (!library_->open(nvml_name(id))) {
    library_.reset();
    return;
  }
  const std::optional<uint64_t> energy = library_->energy_mj();
  has_energy_ = energy.has_value();
  last_mj_ = energy.value_or(0);
}
GpuCounter::~GpuCounter() = default;
GpuCounter::GpuCounter(GpuCounter&&) noexcept = default;
GpuCounter& GpuCounter::operator=(GpuCounter&&) noexcept = default;

void GpuCounter::update() {
  constexpr double kJoule_mj = 1000;
  constexpr double kWhole_percent = 100;
  if (!library_) return;
  if (const std::optional<uint64_t> energy = library_->energy_mj(); has_energy_ && energy) {
    // The counter begins anew with the driver: then the stretch before is lost.
    if (*energy >= last_mj_) joules_ += static_cast<double>(*energy - last_mj_) / kJoule_mj;
    last_mj_ = *energy;
  }
  NvmlUtilization now;
  if (library_->utilization == nullptr || library_->utilization(library_->device, &now) != 0) return;
  sum_of_utilizations_ += now.gpu / kWhole_percent;
  ++utilizations_;
}

std::optional<double> GpuCounter::joules() const {
  if (!library_ || !has_energy_) return std::nullopt;
  return joules_;
}

std::optional<double> GpuCounter::utilization() const {
  if (utilizations_ == 0) return std::nullopt;
  return sum_of_utilizations_ / static_cast<double>(utilizations_);
}

}  // namespace hat
