#include "hat/metrics/line_file.hpp"

#include "hat/core/error.hpp"

namespace hat {

namespace {
// A writer that was killed may have left half a line; the next one must not begin behind it.
bool ends_in_half_a_line(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::ate);
  if (!file || file.tellg() == 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}
}  // namespace

LineFile::LineFile(const std::filesystem::path& path) : path_(path), file_(path, std::ios::app) {
  if (!file_) throw InputError(path.string(), "", "cannot be opened for writing");
  if (ends_in_half_a_line(path)) file_ << '\n';
}

void LineFile::append(std::string line) {
  std::erase_if(writes_, [](std::future<void>& write) {
    if (!is_ready(write)) return false;
    write.get();
    return true;
  });
  writes_.push_back(thread_.submit([this, line = std::move(line)] {
    file_ << line << '\n' << std::flush;
    if (!file_) throw Error(fmt::format("{}: writing a line failed (disk full?)", path_.string()));
  }));
}

void LineFile::close() {
  for (std::future<void>& write : writes_) write.get();
  writes_.clear();
}

}  // namespace hat
