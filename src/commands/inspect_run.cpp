#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <fstream>

#include "commands/inspect.hpp"
#include "commands/run_folder.hpp"
#include "hat/checkpoint/checkpoint_survey.hpp"
#include "hat/config/deck_file.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
constexpr size_t kLinesShown = 5;

/// Whether there is such a file; something else of that name is a problem.
bool is_file(const fs::path& path, std::vector<std::string>& problems) {
  if (!fs::exists(path)) return false;
  if (fs::is_regular_file(path)) return true;
  problems.push_back(fmt::format("{}: is no file", path.string()));
  return false;
}
/// The same of a folder.
bool is_folder(const fs::path& path, std::vector<std::string>& problems) {
  if (!fs::exists(path)) return false;
  if (fs::is_directory(path)) return true;
  problems.push_back(fmt::format("{}: is no folder", path.string()));
  return false;
}

/// The lines of a metrics.jsonl, judged one after the other.
class MetricsLines {
 public:
  explicit MetricsLines(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::string line;
    while (std::getline(file, line)) {
      ++number_;
      if (file.eof()) {  // its writer was killed, or is writing it
        ends_in_the_middle_ = true;
        break;
      }
      add(nlohmann::json::parse(line, nullptr, false), line.starts_with('{'));
    }
    if (torn_ > 0) bad_.push_back(torn_);
  }

  const std::deque<nlohmann::json>& last() const { return last_; }
  /// The last ones of steps that were tried with or without gangs (run_log.hpp).
  const std::deque<nlohmann::json>& split_trials() const { return split_trials_; }
  bool end_in_the_middle() const { return ends_in_the_middle_; }
  /// Numbers of lines, from 1, that no hat has written.
  const std::vector<int64_t>& bad() const { return bad_; }

 private:
  void add(nlohmann::json metrics, bool begins_like_one) {
    // A start may follow half a line: the writer of the start before was killed in the middle of it.
    const bool is_start = metrics.is_object() && metrics.contains("kind") && metrics["kind"] == "start";
    if (torn_ > 0 && !is_start) bad_.push_back(torn_);
    torn_ = 0;
    if (metrics.is_object()) {
      if (metrics.contains("text") && metrics["text"].is_string() && metrics["kind"] == "split_trial") {
        keep(metrics, split_trials_);
      }
      keep(std::move(metrics), last_);
    } else if (begins_like_one) {
      torn_ = number_;
    } else {
      bad_.push_back(number_);
    }
  }

  static void keep(nlohmann::json metrics, std::deque<nlohmann::json>& newest) {
    newest.push_back(std::move(metrics));
    if (newest.size() > kLinesShown) newest.pop_front();
  }

  int64_t number_ = 0;
  std::deque<nlohmann::json> last_;
  std::deque<nlohmann::json> split_trials_;
  int64_t torn_ = 0;  // the line before, when it only began like one
  bool ends_in_the_middle_ = false;
  std::vector<int64_t> bad_;
};

/// "key value, key value" of a JSON object, whatever its keys.
std::string fields_text(const nlohmann::json& object) {
  if (!object.is_object()) return object.dump();
  std::vector<std::string> fields;
  for (const auto& [key, value] : object.items()) {
    fields.push_back(fmt::format("{} {}", key, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return fmt::format("{}", fmt::join(fields, ", "));
}

std::string status_of(const nlohmann::json& status) {
  return status.is_object() && status.contains("status") && status["status"].is_string()
             ? status["status"].get<std::string>()
             : "";
}

void add_status(const fs::path& run, Inspection& result) {
  const fs::path path = run / "status.json";
  result.data["status"] = nullptr;
  if (!fs::exists(path)) {
    result.problems.push_back(fmt::format("{}: is missing", path.string()));
    return;
  }
  if (!is_file(path, result.problems)) return;
  std::ifstream file(path);
  const auto status = nlohmann::json::parse(file, nullptr, false);
  if (status.is_discarded()) {
    result.problems.push_back(fmt::format("{}: is not valid JSON", path.string()));
    return;
  }
  if (status_of(status).empty()) {
    result.problems.push_back(fmt::format("{}: has no text 'status'", path.string()));
    return;
  }
  result.text += fmt::format("  status      {}\n", fields_text(status));
  result.data["status"] = status;
  if (status_of(status) != "running") return;
  result.data["held"] = is_held(run);
  if (result.data["held"]) return;
  // (Locks of other hosts do not show on every file system.)
  result.text += "              but no process here holds the run: it was killed, or trains on another host\n";
}

/// The effective deck: it has to be one that `hat train DECK --resume` can read.
void add_deck(const fs::path& run, Inspection& result) {
  const fs::path path = run / "deck.toml";
  try {
    if (!fs::exists(path)) throw InputError(path.string(), "", "is missing");
    if (!is_file(path, result.problems)) return;
    parse_deck(read_deck_file(path), path.string());
    result.text += fmt::format("  deck        {}\n", path.string());
  } catch (const InputError& error) {
    result.problems.emplace_back(error.what());
  }
}

void add_metrics(const fs::path& run, Inspection& result) {
  const fs::path path = run / "metrics.jsonl";
  result.data["last_metrics"] = nlohmann::json::array();
  result.data["split_trials"] = nlohmann::json::array();
  if (!is_file(path, result.problems)) {
    result.text += "  no metrics.jsonl\n";
    return;
  }
  const MetricsLines lines(path);
  result.text += "  last lines of metrics.jsonl\n";
  for (const nlohmann::json& metrics : lines.last()) {
    result.text += fmt::format("    {}\n", fields_text(metrics));
    result.data["last_metrics"].push_back(metrics);
  }
  for (const nlohmann::json& trial : lines.split_trials()) {
    result.text += fmt::format("  trial of splitting: {}\n", trial["text"].get<std::string>());
    result.data["split_trials"].push_back(trial);
  }
  if (lines.end_in_the_middle()) result.text += "    (the last line is not complete)\n";
  if (lines.bad().empty()) return;
  const std::string all = lines.bad().size() == 1 ? "" : fmt::format(", one of {} such lines", lines.bad().size());
  result.problems.push_back(fmt::format("{}: line {} is no JSON object{}", path.string(), lines.bad().front(), all));
}

/// A checkpoint that is read whole; its problems go to those of the run. Whether it has none.
bool survey(const fs::path& folder, std::vector<std::string>& problems) {
  std::vector<std::string> found;
  try {
    found = checkpoint_problems(survey_checkpoint(folder));
  } catch (const InputError& error) {
    found.emplace_back(error.what());
  }
  if (!fs::exists(folder)) return true;  // a training run has removed it meanwhile
  problems.insert(problems.end(), found.begin(), found.end());
  return found.empty();
}

void add_checkpoint(const fs::path& folder, ReadContents contents, Inspection& result) {
  nlohmann::json entry{{"path", folder.string()}, {"complete", false}};
  const std::string extension = folder.extension().string();
  if (extension == ".partial" || extension.starts_with(".incomplete")) {
    result.text += fmt::format("    {}  not completed\n", folder.string());
  } else if (extension.starts_with(".damaged")) {
    result.text += fmt::format("    {}  damaged, set aside\n", folder.string());
  } else if (contents == ReadContents::yes && !survey(folder, result.problems)) {
    result.text += fmt::format("    {}  damaged\n", folder.string());
  } else {
    try {
      const CheckpointReader reader(folder);
      result.text += fmt::format("    {}  step {}, {} tokens\n", folder.string(), reader.state().step,
                                 with_commas(reader.state().tokens));
      entry["complete"] = true;
      entry["step"] = reader.state().step;
      entry["tokens"] = reader.state().tokens;
    } catch (const InputError& error) {
      if (!fs::exists(folder)) return;  // as above
      result.text += fmt::format("    {}  damaged\n", folder.string());
      result.problems.emplace_back(error.what());
    }
  }
  result.data["checkpoints"].push_back(entry);
}

void add_checkpoints(const fs::path& run, ReadContents contents, Inspection& result) {
  result.data["checkpoints"] = nlohmann::json::array();
  std::vector<fs::path> folders;
  if (is_folder(run / "checkpoints", result.problems)) {
    for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
      const std::string name = entry.path().filename().string();
      const bool is_aside = name.find(".damaged") != std::string::npos || name.find(".incomplete") != std::string::npos;
      if (!is_aside && !is_folder(entry.path(), result.problems)) continue;
      folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  result.text += fmt::format("  {}\n", counted(static_cast<int64_t>(folders.size()), "checkpoint"));
  for (const fs::path& folder : folders) add_checkpoint(folder, contents, result);
}

/// What every run has once it has come so far: a run that failed at its start may lack them.
void add_missing(const fs::path& run, Inspection& result) {
  const auto& checkpoints = result.data["checkpoints"];
  int64_t reached = 0;
  for (const auto& entry : checkpoints) {
    if (entry["complete"]) reached = std::max(reached, entry["step"].get<int64_t>());
  }
  for (const auto& attempt : result.data["log"]) reached = std::max(reached, attempt["end_step"].get<int64_t>());
  const int64_t told = is_held(run) || !loses_no_step(run) ? 0 : last_logged_step(run);
  if (told > reached) {
    result.problems.push_back(fmt::format("{}: tells of {} steps, but checkpoints and gradient log only reach step {}",
                                          (run / "metrics.jsonl").string(), told, reached));
  }
  const bool has_trained =
      status_of(result.data["status"]) == "finished" ||
      std::any_of(checkpoints.begin(), checkpoints.end(), [](const auto& entry) { return entry["complete"]; });
  for (const char* name : {"metrics.jsonl", "metrics.h5"}) {
    if (has_trained && !fs::exists(run / name)) {
      result.problems.push_back(fmt::format("{}: is missing", (run / name).string()));
    }
  }
}
}  // namespace

Inspection inspect_run(const fs::path& run, ReadContents contents) {
  Inspection result;
  result.text = fmt::format("run {}\n", run.string());
  result.data = {{"kind", "run"}, {"path", run.string()}};
  add_status(run, result);
  add_deck(run, result);
  add_metrics(run, result);
  add_accounts(run, result);
  add_checkpoints(run, contents, result);
  add_log(run, contents, result);
  add_missing(run, result);
  return result;
}

}  // namespace hat
