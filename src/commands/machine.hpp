#pragma once
#include <cstdint>
#include <string>

namespace hat {

/// The computer this process runs on.
struct Machine {
  std::string hostname;
  std::string processor;
  int cores = 0;       ///< this process may use (affinity)
  int cores_here = 0;  ///< the machine has
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;
  int numa_nodes = 0;
  std::string vector_instructions;  ///< of those that matter here: "avx2 fma avx512f avx512_bf16"
};

/// Reads /proc and /sys; what they do not tell stays empty or zero.
Machine describe_machine();

}  // namespace hat
