#pragma once
#include <string>
#include <vector>

namespace hat {

/// What the CUDA driver of this machine offers, whether or not this build could use it.
struct CudaDriver {
  std::string version;               ///< newest CUDA version it supports, "13.0"; empty without a driver
  std::vector<std::string> devices;  ///< names
  std::string problem;               ///< why there is no device; empty when there is one
};

/// Loads the driver's library if there is one (no CUDA is needed to build this) and asks it. Throws nothing.
CudaDriver probe_cuda_driver();

}  // namespace hat
