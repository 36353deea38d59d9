#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hat {

/// What `hat inspect` found: once for people, once for programs, and what is wrong with it (one line each).
struct Inspection {
  std::string text;
  nlohmann::json data;
  std::vector<std::string> problems;
};

enum class ReadContents { no, yes };

/// `contents`: whether to read all tokens and compare them with their checksums.
Inspection inspect_dataset(const std::filesystem::path& path, ReadContents contents);
Inspection inspect_checkpoint(const std::filesystem::path& path);
Inspection inspect_run(const std::filesystem::path& run);

/// Adds what metrics.h5 says of workers and blocks. A run without the file (of an earlier version) is no problem; one
/// that is cut, damaged or foreign is one problem line.
void add_accounts(const std::filesystem::path& run, Inspection& result);

}  // namespace hat
