// The kernels-only build has no other device's.
#include "../../../kernels/cuda_operations.hpp"
#include "hat/core/error.hpp"

namespace hat {

const Operations& operations(DeviceKind kind) {
  if (kind != DeviceKind::cuda) throw Error("this build has kernels for CUDA only");
  return cuda::cuda_operations();
}

}  // namespace hat
