#pragma once
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "hat/core/background_thread.hpp"

namespace hat {

/// A text file that grows by whole lines, written by a thread of its own: the caller never waits for the disk.
class LineFile {
 public:
  /// Appends to `path`, creating it. Throws InputError when that cannot be done.
  explicit LineFile(const std::filesystem::path& path);

  /// Queues one line (without its end). Throws Error if an earlier line could not be written.
  void append(std::string line);
  /// Waits until all lines are in the file.
  void close();

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::vector<std::future<void>> writes_;
  BackgroundThread thread_;  // last member: it ends before the file closes
};

}  // namespace hat
