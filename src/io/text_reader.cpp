#include "hat/io/text_reader.hpp"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hat/core/error.hpp"

namespace hat {

namespace {
constexpr size_t kBufferBytes = size_t{1} << 18;
}

struct TextReader::Impl {
  std::string path;
  gzFile file = nullptr;
  std::vector<char> buffer = std::vector<char>(kBufferBytes);
  std::span<const char> unread;  // what next_line left over

  ~Impl() {
    if (file != nullptr) gzclose(file);
  }

  [[noreturn]] void fail() const {
    int code = Z_OK;
    const char* text = gzerror(file, &code);
    if (code == Z_ERRNO) throw InputError(path, "", std::strerror(errno));
    if (code == Z_BUF_ERROR) throw InputError(path, "", "gzip data end early (truncated file)");
    throw InputError(path, "", fmt::format("gzip data are damaged ({})", text));
  }
};

TextReader::TextReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path.string();
  std::error_code status_error;
  if (std::filesystem::is_directory(path, status_error)) throw InputError(impl_->path, "", "is a folder, not a file");
  impl_->file = gzopen(path.c_str(), "rb");
  if (impl_->file == nullptr)
    throw InputError(impl_->path, "", errno == ENOENT ? "no such file" : std::strerror(errno));
  gzbuffer(impl_->file, kBufferBytes);
}
TextReader::~TextReader() = default;
TextReader::TextReader(TextReader&&) noexcept = default;

std::span<const char> TextReader::next() {
  if (!impl_->unread.empty()) return std::exchange(impl_->unread, {});
  const int size = gzread(impl_->file, impl_->buffer.data(), kBufferBytes);
  if (size < 0) impl_->fail();
  if (size == 0) {
    // gzread reports a gzip stream that stops in the middle only through gzerror.
    int code = Z_OK;
    gzerror(impl_->file, &code);
    if (code != Z_OK && code != Z_STREAM_END) impl_->fail();
  }
  return {impl_->buffer.data(), static_cast<size_t>(size)};
}

bool TextReader::next_line(std::string& line) {
  line.clear();
  bool found = false;
  for (auto piece = next(); !piece.empty(); piece = next()) {
    found = true;
    const auto* newline = static_cast<const char*>(std::memchr(piece.data(), '\n', piece.size()));
    if (newline == nullptr) {
      line.append(piece.data(), piece.size());
      continue;
    }
    const auto length = static_cast<size_t>(newline - piece.data());
    line.append(piece.data(), length);
    impl_->unread = piece.subspan(length + 1);
    break;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return found;
}

int64_t TextReader::position() const { return gzoffset(impl_->file); }

}  // namespace hat
