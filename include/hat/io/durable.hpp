#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "hat/core/fault.hpp"

namespace hat {

/// Every fsync of a file or folder made by this module adds one to `counter` while it is set (nullptr: none). Tests use
/// it: a process that is killed loses nothing that was only not fsynced, so no crash test can notice a missing call.
/// Returns the counter set before.
std::atomic<int64_t>* set_fsync_counter(std::atomic<int64_t>* counter);

/// Contents of a file reach the disk. Throws Error naming the file.
void fsync_file(const std::filesystem::path& path);
/// Names in a folder (creations, renames, removals) reach the disk.
void fsync_folder(const std::filesystem::path& folder);
/// Renames, replacing `to` if it is a file, and makes both folders durable. `from` itself must be durable already.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// The temporary name "<path>.tmp" of a file that is being written: it gets its own name when it is whole, and is
/// removed when that does not come about.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& path) : path_(path), draft_(path.string() + ".tmp") {}
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::filesystem::path& path() const { return draft_; }
  /// As rename_durably: the file is closed and durable.
  void rename();

 private:
  std::filesystem::path path_;
  std::filesystem::path draft_;
  bool is_renamed_ = false;
};

/// Writes a small file so that it is either whole or absent: temporary name, fsync, rename, fsync of the folder.
void write_file_durably(const std::filesystem::path& path, std::string_view content);
/// The same, but where there is no room for a second file (a full disk) the old one is written over, if the new content
/// fits into the blocks that it has: what it says counts more than that a crash at this moment leaves it torn. Line
/// feeds fill it up to its old length.
void rewrite_file_durably(const std::filesystem::path& path, std::string_view content);

/// What becomes of a file that was just written where its disk is to blame (FaultEffect::fail, shorten): throws Error
/// as on a full disk, or keeps the first half only.
void spoil_write(FaultEffect effect, const std::filesystem::path& path);
/// The same of a file that grows, and was `before`: of the sectors that were written since the second half is as it
/// was, and the process dies, as when the power fails. (Nobody could notice it otherwise.)
void spoil_append(FaultEffect effect, const std::filesystem::path& path, const std::string& before);
/// All of a file.
std::string file_bytes(const std::filesystem::path& path);

}  // namespace hat
