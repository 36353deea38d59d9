#include "hat/device/cuda_driver.hpp"

#include <fmt/format.h>

#include <array>

#include "device/dynamic_library.hpp"

namespace hat {

CudaDriver probe_cuda_driver() {
  CudaDriver driver;
  const DynamicLibrary library{"libcuda.so.1"};
  if (!library.is_loaded()) {
    driver.problem = "no driver";
    return driver;
  }
  // The driver's own header is not needed: these four have had one signature since CUDA 2. `int` stands for CUresult
  // and CUdevice, whose values they are.
  auto* initialize = library.find<int(unsigned)>("cuInit");
  auto* get_version = library.find<int(int*)>("cuDriverGetVersion");
  auto* get_count = library.find<int(int*)>("cuDeviceGetCount");
  auto* get_name = library.find<int(char*, int, int)>("cuDeviceGetName");
  if (initialize == nullptr || get_version == nullptr || get_count == nullptr || get_name == nullptr) {
    driver.problem = "libcuda.so.1 lacks functions of the driver";
    return driver;
  }
  int version = 0;
  if (get_version(&version) == 0) driver.version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  const int code = initialize(0);
  int count = 0;
  if (code != 0 || get_count(&count) != 0 || count == 0) {
    driver.problem = code == 0 ? "no device" : fmt::format("the driver reports error {}", code);
    return driver;
  }
  for (int device = 0; device < count; ++device) {
    std::array<char, 256> name{};
    if (get_name(name.data(), static_cast<int>(name.size()), device) != 0) name = {"(unnamed)"};
    driver.devices.emplace_back(name.data());
  }
  return driver;
}

}  // namespace hat
