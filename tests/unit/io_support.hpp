#pragma once
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "hat/core/error.hpp"
#include "hat/core/random.hpp"

/// What the tests of files share.
namespace hat::test {

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hat-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw Error("no temporary folder");
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_gzip(const std::filesystem::path& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())), static_cast<int>(content.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

/// Calls `look(trial)` with the file damaged at 200 random places: cut there in every fourth trial, otherwise with a
/// bit flipped; whole again at the end.
inline void damage_at_random(const std::filesystem::path& path, uint64_t seed, const std::function<void()>& look) {
  constexpr uint64_t kTrials = 200;
  const std::string whole = read_bytes(path);
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    std::string damaged = whole;
    const auto at = static_cast<size_t>(random_uniform(seed, trial, 0) * static_cast<double>(whole.size()));
    if (trial % 4 == 0) {
      damaged.resize(at);
    } else {
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (trial % 8)));
    }
    write_bytes(path, damaged);
    look();
  }
  write_bytes(path, whole);
}

/// Keeps the first `size` bytes.
inline void truncate_file(const std::filesystem::path& path, uintmax_t size) {
  std::filesystem::resize_file(path, size);
}

/// `action` must throw an InputError whose message is one line and contains all of `parts`.
inline void expect_input_error(const std::function<void()>& action, const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
    return;
  } catch (const std::exception& error) {
    FAIL() << "not an InputError: " << error.what();
  }
  FAIL() << "nothing was thrown; expected '" << (parts.empty() ? "" : parts.back()) << "'";
}

}  // namespace hat::test
