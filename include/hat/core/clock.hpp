#pragma once
#include <chrono>

namespace hat {

/// Seconds on a monotonic clock.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hat
