#pragma once
#include "hat/kernels/operations.hpp"

namespace hat::cuda {

/// The table for CUDA: from kernels/cuda, or where HAT is built without CUDA from kernels/no_cuda, which throws Error.
const Operations& cuda_operations();

}  // namespace hat::cuda
