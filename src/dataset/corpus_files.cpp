#include <algorithm>
#include <map>

#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/corpus.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
bool is_jsonl(const fs::path& path) {
  fs::path name = path.filename();
  if (name.extension() == ".gz") name.replace_extension();
  return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

bool matches_any(const std::vector<std::string>& globs, const fs::path& below) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return glob_match(glob, below.generic_string()) || glob_match(glob, below.filename().string());
  });
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

/// Links to nothing are no files; what cannot be told (a loop of links, a folder without permission) is an error.
bool is_file(const fs::directory_entry& entry) {
  std::error_code error;
  const bool regular = entry.is_regular_file(error);
  if (error && error != std::errc::no_such_file_or_directory) {
    throw InputError(entry.path().string(), "", fmt::format("cannot be read: {}", error.message()));
  }
  return regular;
}

/// Paths below `folder` of all regular files that the options let through, sorted.
std::vector<fs::path> files_below(const fs::path& folder, const CorpusOptions& options) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::path reading = folder;
  auto entry = fs::recursive_directory_iterator(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    reading = entry->path();  // the next step may read it as a folder
    if (is_hidden(entry->path())) {
      std::error_code ignored;
      if (entry->is_directory(ignored)) entry.disable_recursion_pending();
      continue;
    }
    const fs::path below = entry->path().lexically_relative(folder);
    if (!is_file(*entry) || matches_any(options.exclude, below)) continue;
    if (options.include.empty() || matches_any(options.include, below)) found.push_back(below);
  }
  if (error) {
    std::error_code ignored;
    const bool read_a_file = fs::is_regular_file(reading, ignored);
    throw InputError((read_a_file ? folder : reading).string(), "", fmt::format("cannot be read: {}", error.message()));
  }
  if (found.empty()) {
    throw InputError(folder.string(), "",
                     options.include.empty() && options.exclude.empty()
                         ? "there is no file in the folder"
                         : "no file in the folder passes include and exclude");
  }
  std::sort(found.begin(), found.end());
  return found;
}
}  // namespace

fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

std::vector<CorpusFile> find_corpus_files(const std::vector<std::string>& inputs, const CorpusOptions& options) {
  std::vector<CorpusFile> files;
  std::map<fs::path, fs::path> seen;  // files by what they resolve to
  const auto add = [&](const fs::path& path) {
    const auto [first, is_new] = seen.emplace(resolved(path), path);
    if (!is_new) {
      const std::string other = first->second == path ? "" : fmt::format(", first as {}", first->second.string());
      throw InputError(path.string(), "",
                       fmt::format("is given twice{}: its documents would be in both splits", other));
    }
    std::error_code error;
    const auto size = fs::file_size(path, error);  // unknown for a pipe
    files.push_back({path, error ? 0 : static_cast<int64_t>(size), is_jsonl(path)});
  };
  for (const std::string& input : inputs) {
    std::error_code error;
    const auto status = fs::status(input, error);
    if (!fs::exists(status)) throw InputError(input, "", "no such file or folder");
    if (fs::is_directory(status)) {
      for (const fs::path& below : files_below(input, options)) add(fs::path(input) / below);
    } else {
      add(input);
    }
  }
  return files;
}

}  // namespace hat
