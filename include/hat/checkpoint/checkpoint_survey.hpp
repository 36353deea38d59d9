#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"

namespace hat {

/// What one tensor of a checkpoint holds, as far as it can be read.
struct TensorSurvey {
  std::string path;
  int64_t rows = 0;
  int64_t columns = 1;
  bool is_vector = false;
  double norm = 0.0;              ///< square root of the sum of squares of the finite values read
  int64_t not_finite = 0;         ///< NaN or infinite values
  int64_t unreadable_values = 0;  ///< in slices that are missing or damaged
};

/// Everything that can be said about a checkpoint, damaged or not.
struct CheckpointSurvey {
  std::filesystem::path folder;
  int64_t servers = 0;
  std::optional<CheckpointState> state;  ///< nothing when the master file cannot be read
  std::vector<TensorSurvey> tensors;
  std::vector<std::string> problems;  ///< one line each, naming the file
};

/// Reads all of a checkpoint (same paths as CheckpointReader), checks every checksum, and goes on behind what is
/// damaged. Throws InputError only when there is no checkpoint at that path. Memory: one megabyte or so.
CheckpointSurvey survey_checkpoint(const std::filesystem::path& path);

}  // namespace hat
