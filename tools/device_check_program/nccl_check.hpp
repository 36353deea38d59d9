#pragma once

namespace hat::check_device {

/// Sums over the first `gpus` GPUs by the product's NCCL code, a process each. To be called before this process uses
/// CUDA. Throws Error where this process cannot.
bool nccl_sums_are_right(int gpus);

}  // namespace hat::check_device
