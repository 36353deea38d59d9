#include "hat/io/durable.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "hat/core/error.hpp"

namespace hat {

namespace {
std::atomic<std::atomic<int64_t>*> fsync_counter{nullptr};

/// The disk is full, or the user's share of it.
struct NoRoom : Error {
  using Error::Error;
};

/// "<path>: cannot <what>: <errno's text>".
[[noreturn]] void refuse(const std::string& path, const char* what) {
  const int error = errno;
  const std::string text = fmt::format("{}: cannot {}: {}", path, what, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) throw NoRoom(text);
  throw Error(text);
}

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : path_(path.string()), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) refuse(path_, "open");
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  /// All of it, from `at` on.
  void write(std::string_view content, off_t at = 0) const {
    while (!content.empty()) {
      const ssize_t count = ::pwrite(fd_, content.data(), content.size(), at);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) refuse(path_, "write");
      content.remove_prefix(static_cast<size_t>(count));
      at += count;
    }
  }
  void sync() const {
    if (::fsync(fd_) != 0) refuse(path_, "make durable (fsync)");
    if (auto* counter = fsync_counter.load()) counter->fetch_add(1);
  }
  /// close() reports what a network file system found out late.
  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) refuse(path_, "close");
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
    refuse(from.string(), fmt::format("rename to {}", to.string()).c_str());
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
    file.write(content);
    file.sync();
    file.close();
  }
  draft.rename();
}

void rewrite_file_durably(const std::filesystem::path& path, std::string_view content) {
  try {
    write_file_durably(path, content);
  } catch (const NoRoom&) {
    struct stat old {};
    constexpr std::int64_t kStatBlock = 512;
    if (::stat(path.c_str(), &old) != 0 || !S_ISREG(old.st_mode)) throw;
    if (old.st_blocks * kStatBlock < std::ssize(content)) throw;  // it could end in the middle
    std::string filled(content);
    filled.resize(std::max(filled.size(), static_cast<std::size_t>(old.st_size)), '\n');
    Descriptor file(path, O_WRONLY);
    file.write(filled);
    file.sync();
    file.close();
  }
}

void spoil_write(FaultEffect effect, const std::filesystem::path& path) {
  if (effect == FaultEffect::fail) {
    throw Error(fmt::format("{}: cannot write: {} (fault.action)", path.string(), std::strerror(ENOSPC)));
  }
  if (effect == FaultEffect::shorten) std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
}

void spoil_append(FaultEffect effect, const std::filesystem::path& path, const std::string& before) {
  constexpr size_t kSector = 512;
  if (effect != FaultEffect::shorten) {
    spoil_write(effect, path);
    return;
  }
  std::string after = file_bytes(path);
  std::vector<size_t> written;
  for (size_t at = 0; at < after.size(); at += kSector) {
    if (at >= before.size() || after.compare(at, kSector, before, at, kSector) != 0) written.push_back(at);
  }
  for (size_t i = written.size() / 2; i < written.size(); ++i) {
    const std::string old = written[i] < before.size() ? before.substr(written[i], kSector) : "";
    const size_t size = std::min(kSector, after.size() - written[i]);
    after.replace(written[i], size, old + std::string(size - std::min(size, old.size()), '\0'));
  }
  const Descriptor file(path, O_WRONLY);
  file.write(after);
  ::kill(::getpid(), SIGKILL);
}

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path.string(), "open");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace hat
