#include "../cuda_operations.hpp"
#include "hat/core/error.hpp"

namespace hat::cuda {

const Operations& cuda_operations() { throw Error("this build has no CUDA kernels"); }

}  // namespace hat::cuda
