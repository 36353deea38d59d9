// What GpuCounter uses of NVIDIA's management library, for tests: one device (and by its name the first emulated one),
// whose counters stand in a file that FAKE_NVML names: millijoules and percent. No file: the calls fail.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {
constexpr int kSuccess = 0;
constexpr int kNotFound = 6;
constexpr int kNotSupported = 3;
int initialized = 0;

bool read_counters(unsigned long long& energy_mj, unsigned int& percent) {
  const char* path = std::getenv("FAKE_NVML");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return false;
  const bool is_read = std::fscanf(file, "%llu %u", &energy_mj, &percent) == 2;
  std::fclose(file);
  return is_read && initialized > 0;
}
}  // namespace

extern "C" {
int nvmlInit_v2() {
  ++initialized;
  return kSuccess;
}
int nvmlShutdown() {
  --initialized;
  return kSuccess;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = &initialized;
  for (const char* name : {"GPU-01234567-89ab-cdef-0123-456789abcdef", "GPU-00000000-0000-0000-0000-000000000000"}) {
    if (std::strcmp(uuid, name) == 0) return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy_mj) {
  unsigned int percent = 0;
  return device == &initialized && read_counters(*energy_mj, percent) ? kSuccess : kNotSupported;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned int* rates) {
  unsigned long long energy_mj = 0;
  rates[1] = 0;
  return device == &initialized && read_counters(energy_mj, rates[0]) ? kSuccess : kNotSupported;
}
}
