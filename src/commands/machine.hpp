#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace hat {

/// The computer this process runs on.
struct Machine {
  std::string hostname;
  std::string processor;
  int cores = 0;       ///< this process may use (affinity)
  int cores_here = 0;  ///< the machine has
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;  ///< of it for new programs, within the limits of this process's control groups
  int numa_nodes = 0;
  std::string vector_instructions;  ///< of those that matter here: "avx2 fma avx512f avx512_bf16"
};

/// Reads /proc and /sys; what they do not tell stays empty or zero.
Machine describe_machine();

/// What the control groups of a process (Slurm's --mem, a container's limit) leave it of memory: the least of its group
/// and those above, file cache counted as free. Nothing where there is no limit. Both versions of control groups:
/// `membership` is /proc/self/cgroup, `root` /sys/fs/cgroup.
std::optional<int64_t> memory_left_by_groups(const std::filesystem::path& membership,
                                             const std::filesystem::path& root);

}  // namespace hat
