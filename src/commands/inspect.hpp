#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint_survey.hpp"

namespace hat {

/// What `hat inspect` found: once for people, once for programs, and what is wrong with it (one line each).
struct Inspection {
  std::string text;
  nlohmann::json data;
  std::vector<std::string> problems;
};

enum class ReadContents { no, yes };

/// `contents`: whether to read all tokens, or all values of all checkpoints and logs, and compare them with their
/// checksums.
Inspection inspect_dataset(const std::filesystem::path& path, ReadContents contents);
Inspection inspect_checkpoint(const std::filesystem::path& path);
Inspection inspect_run(const std::filesystem::path& run, ReadContents contents);

/// What is wrong with a checkpoint, values that are not finite included.
std::vector<std::string> checkpoint_problems(const CheckpointSurvey& survey);

/// Adds what metrics.h5 says of workers and blocks. A file that is cut, damaged or foreign is one problem line; whether
/// it has to be there at all, the caller knows.
void add_accounts(const std::filesystem::path& run, Inspection& result);

/// Adds what the gradient log holds, and what is wrong with it.
void add_log(const std::filesystem::path& run, ReadContents contents, Inspection& result);

}  // namespace hat
