#include <algorithm>
#include <charconv>

#include "checkpoint/checkpoint_files.hpp"
#include "hat/core/error.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kPartialSuffix = ".partial";

/// The step in a name "step-00001000" + suffix; nothing for other names.
std::optional<int64_t> step_of(const std::string& name, std::string_view suffix) {
  std::string_view digits = name;
  if (!digits.starts_with(kStepPrefix) || !digits.ends_with(suffix)) return std::nullopt;
  digits.remove_prefix(kStepPrefix.size());
  digits.remove_suffix(suffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return step;
}

struct Found {
  int64_t step = 0;
  fs::path folder;
};

enum class Kinds { folders, all };

/// Step folders of a run whose names end in `suffix`, ascending; `all`: whatever has such a name.
std::vector<Found> find_steps(const fs::path& run, std::string_view suffix, Kinds kinds = Kinds::folders) {
  std::vector<Found> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error)) {
    const auto step = step_of(entry.path().filename().string(), suffix);
    if (step && (kinds == Kinds::all || entry.is_directory())) found.push_back({*step, entry.path()});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
  return found;
}

std::vector<Found> find_complete(const fs::path& run) {
  auto found = find_steps(run, "");
  std::erase_if(found, [](const Found& step) { return !fs::exists(step.folder / kMarkerName); });
  return found;
}

/// Takes the final name away first: a removal that is interrupted leaves no folder that looks complete.
void remove_checkpoint(const fs::path& folder) {
  const fs::path partial = partial_folder(folder);
  fs::remove_all(partial);
  rename_durably(folder, partial);
  fs::remove_all(partial);
}
}  // namespace

fs::path checkpoint_folder(const fs::path& run, int64_t step) {
  return run / "checkpoints" / fmt::format("{}{:08}", kStepPrefix, step);
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const auto complete = find_complete(run);
  if (complete.empty()) return std::nullopt;
  return complete.back().folder;
}

std::vector<int64_t> complete_checkpoints(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const Found& found : find_complete(run)) steps.push_back(found.step);
  return steps;
}

void rotate_checkpoints(const fs::path& run, int64_t keep) {
  if (keep < 1) throw Error(fmt::format("{} checkpoints cannot be kept, at least 1", keep));
  const auto complete = find_complete(run);
  for (size_t i = 0; i + static_cast<size_t>(keep) < complete.size(); ++i) remove_checkpoint(complete[i].folder);
  if (complete.empty()) return;
  for (const Found& partial : find_steps(run, kPartialSuffix)) {
    if (partial.step < complete.back().step) fs::remove_all(partial.folder);
  }
}

std::vector<fs::path> set_incomplete_aside(const fs::path& run) {
  std::vector<fs::path> aside;
  for (const Found& step : find_steps(run, "", Kinds::all)) {
    if (fs::exists(step.folder / kMarkerName)) continue;
    fs::path name = step.folder.string() + ".incomplete";
    for (int n = 2; fs::exists(name); ++n) name = fmt::format("{}.incomplete-{}", step.folder.string(), n);
    rename_durably(step.folder, name);
    aside.push_back(name);
  }
  return aside;
}

std::string way_around(const fs::path& folder) {
  const fs::path checkpoints = fs::absolute(folder).parent_path();
  const std::optional<int64_t> own = step_of(folder.filename().string(), "");
  if (!own || checkpoints.filename() != "checkpoints") return "";
  std::string older;
  for (const Found& step : find_complete(checkpoints.parent_path())) {
    if (step.step < *own) older += (older.empty() ? "" : ", ") + step.folder.filename().string();
  }
  if (older.empty()) return "";
  return fmt::format("; there are older checkpoints ({}): move {} away to use the newest of them", older,
                     folder.filename().string());
}

fs::path resolve_checkpoint(const fs::path& path) {
  const std::string where = path.string();
  if (!fs::exists(path)) throw InputError(where, "", "no such file or folder");
  if (!fs::is_directory(path)) {
    if (path.filename() != kMasterName) {
      throw InputError(where, "", fmt::format("is not a {}: give that, its folder, or a run folder", kMasterName));
    }
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
  }
  if (fs::exists(path / kMasterName) || fs::exists(path / kMarkerName)) return path;
  if (fs::exists(path / "checkpoints")) {
    if (const auto newest = newest_checkpoint(path)) return *newest;
    throw InputError(where, "", "this run has no complete checkpoint");
  }
  if (fs::exists(path / server_file_name(0))) {
    throw InputError(where, "", fmt::format("{} is missing: this checkpoint was not completed", kMasterName));
  }
  throw InputError(where, "", fmt::format("is no checkpoint ({} is missing) and no run folder", kMasterName));
}

}  // namespace hat
