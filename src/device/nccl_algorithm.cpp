#include <cstdlib>

#include "hat/device/nccl_communicator.hpp"

namespace hat {

namespace {

constexpr char kVariable[] = "NCCL_ALGO";

/// A communicator that is made again, of the survivors of a death, must not take its own choice for the user's.
bool was_set_here = false;

}  // namespace

void choose_nccl_algorithm(NcclAlgorithm algorithm) {
  if (algorithm == NcclAlgorithm::automatic || user_chose_nccl_algorithm()) return;
  setenv(kVariable, algorithm == NcclAlgorithm::ring ? "Ring" : "Tree", 1);
  was_set_here = true;
}

bool user_chose_nccl_algorithm() { return !was_set_here && std::getenv(kVariable) != nullptr; }

}  // namespace hat
