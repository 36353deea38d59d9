#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hat {

/// Reads a text file from front to back, plain or gzip (told apart by content). Memory: one buffer, whatever the size.
/// Throws InputError naming the file when it cannot be read or its gzip data are damaged or end early.
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path);
  ~TextReader();
  TextReader(TextReader&&) noexcept;

  /// The next bytes of the text, valid until the next call; empty at the end.
  std::span<const char> next();
  /// The next line without its end of line ("\n" or "\r\n"); false at the end.
  bool next_line(std::string& line);
  /// Bytes consumed from the file on disk, for progress.
  int64_t position() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
