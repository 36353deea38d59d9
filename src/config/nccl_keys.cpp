#include "config/nccl_keys.hpp"

#include "hat/config/checks.hpp"

namespace hat {

void add_nccl_keys(OptionSet& options, NcclConfig& nccl) {
  options.add_named<NcclAlgorithm>(
      "comm.nccl.algorithm", nccl.algorithm,
      {{"ring", NcclAlgorithm::ring}, {"tree", NcclAlgorithm::tree}, {"auto", NcclAlgorithm::automatic}},
      "How NCCL sums gradients of barrier blocks over GPUs; auto: NCCL chooses for each size. NCCL_ALGO in the "
      "environment stands before it");
  options
      .add("comm.nccl.bucket_mib", nccl.bucket_mib,
           "MiB of gradients that NCCL sums in one go: blocks that leave the backward pass one behind the other; a "
           "larger block goes alone, with 0 every block does")
      ->check(real_in(0, 1e6));
}

}  // namespace hat
