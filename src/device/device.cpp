#include "hat/device/device.hpp"

#include <fmt/format.h>

namespace hat {

std::string describe(const Device& device) {
  return fmt::format("cpu ({} thread{})", device.threads, device.threads == 1 ? "" : "s");
}

}  // namespace hat
