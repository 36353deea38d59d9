#include "hat/io/durable.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hat/core/error.hpp"

namespace hat {

namespace {
std::atomic<std::atomic<int64_t>*> fsync_counter{nullptr};

std::string reason() { return std::strerror(errno); }

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : path_(path.string()), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw Error(fmt::format("{}: cannot open: {}", path_, reason()));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  void sync() const {
    if (::fsync(fd_) != 0) throw Error(fmt::format("{}: cannot make durable (fsync): {}", path_, reason()));
    if (auto* counter = fsync_counter.load()) counter->fetch_add(1);
  }
  /// close() reports what a network file system found out late.
  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) throw Error(fmt::format("{}: cannot close: {}", path_, reason()));
  }

 private:
  std::string path_;
  int fd_;
};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}
}  // namespace

std::atomic<int64_t>* set_fsync_counter(std::atomic<int64_t>* counter) { return fsync_counter.exchange(counter); }

void fsync_file(const std::filesystem::path& path) {
  Descriptor file(path, O_RDONLY);
  file.sync();
  file.close();
}

void fsync_folder(const std::filesystem::path& folder) {
  Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  descriptor.sync();
  descriptor.close();
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw Error(fmt::format("{}: cannot rename to {}: {}", from.string(), to.string(), reason()));
  }
  fsync_folder(folder_of(to));
  if (folder_of(from) != folder_of(to)) fsync_folder(folder_of(from));
}

Draft::~Draft() {
  if (!is_renamed_) ::unlink(draft_.c_str());  // a folder of that name is not ours, and stays
}

void Draft::rename() {
  rename_durably(draft_, path_);
  is_renamed_ = true;
}

void write_file_durably(const std::filesystem::path& path, std::string_view content) {
  Draft draft(path);
  {
    Descriptor file(draft.path(), O_WRONLY | O_CREAT | O_TRUNC);
    while (!content.empty()) {
      const ssize_t written = ::write(file.get(), content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw Error(fmt::format("{}: cannot write: {}", draft.path().string(), reason()));
      content.remove_prefix(static_cast<size_t>(written));
    }
    file.sync();
    file.close();
  }
  draft.rename();
}

}  // namespace hat
