#include "hat/device/cuda_driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <memory>

namespace hat {

namespace {

struct CloseLibrary {
  void operator()(void* library) const noexcept { dlclose(library); }
};

/// A function of the driver, by its name. The driver's own header is not needed: these four have had one signature
/// since CUDA 2. `int` stands for CUresult and CUdevice, whose values they are.
template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

CudaDriver probe_cuda_driver() {
  CudaDriver driver;
  const std::unique_ptr<void, CloseLibrary> library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    driver.problem = "no driver";
    return driver;
  }
  auto* initialize = symbol<int(unsigned)>(library.get(), "cuInit");
  auto* get_version = symbol<int(int*)>(library.get(), "cuDriverGetVersion");
  auto* get_count = symbol<int(int*)>(library.get(), "cuDeviceGetCount");
  auto* get_name = symbol<int(char*, int, int)>(library.get(), "cuDeviceGetName");
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
