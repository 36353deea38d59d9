#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "commands/inspect.hpp"
#include "hat/checkpoint/checkpoint.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
constexpr std::streamoff kTailBytes = 1 << 16;
constexpr size_t kLinesShown = 5;

struct Tail {
  std::vector<std::string> lines;
  bool ends_in_the_middle = false;  // of a line: its writer was killed, or is writing it
};

/// The last whole lines of a file, at most kLinesShown, from its last kTailBytes.
Tail last_lines(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  Tail tail;
  std::string line;
  if (size > kTailBytes) std::getline(file, line);  // begins somewhere in the middle
  while (std::getline(file, line)) {
    tail.ends_in_the_middle = file.eof();
    if (!tail.ends_in_the_middle) tail.lines.push_back(line);
  }
  if (tail.lines.size() > kLinesShown) {
    tail.lines.erase(tail.lines.begin(), tail.lines.end() - static_cast<std::ptrdiff_t>(kLinesShown));
  }
  return tail;
}

/// "key value, key value" of a JSON object, whatever its keys.
std::string fields_text(const nlohmann::json& object) {
  if (!object.is_object()) return object.dump();
  std::vector<std::string> fields;
  for (const auto& [key, value] : object.items()) {
    fields.push_back(fmt::format("{} {}", key, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return fmt::format("{}", fmt::join(fields, ", "));
}

void add_status(const fs::path& run, Inspection& result) {
  const fs::path path = run / "status.json";
  if (!fs::exists(path)) {
    result.text += "  it has not ended, or its end was not written (no status.json)\n";
    result.data["status"] = nullptr;
    return;
  }
  std::ifstream file(path);
  const auto status = nlohmann::json::parse(file, nullptr, false);
  if (status.is_discarded()) {
    result.problems.push_back(fmt::format("{}: is not valid JSON", path.string()));
    return;
  }
  result.text += fmt::format("  status      {}\n", fields_text(status));
  result.data["status"] = status;
}

void add_metrics(const fs::path& run, Inspection& result) {
  const fs::path path = run / "metrics.jsonl";
  result.data["last_metrics"] = nlohmann::json::array();
  if (!fs::exists(path)) {
    result.text += "  no metrics.jsonl\n";
    return;
  }
  result.text += "  last lines of metrics.jsonl\n";
  const Tail tail = last_lines(path);
  for (const std::string& line : tail.lines) {
    const auto metrics = nlohmann::json::parse(line, nullptr, false);
    if (metrics.is_discarded()) {
      result.problems.push_back(
          fmt::format("{}: a line among the last is not valid JSON: {:.60}", path.string(), line));
      continue;
    }
    result.text += fmt::format("    {}\n", fields_text(metrics));
    result.data["last_metrics"].push_back(metrics);
  }
  if (tail.ends_in_the_middle) result.text += "    (the last line is not complete)\n";
}

void add_checkpoints(const fs::path& run, Inspection& result) {
  result.data["checkpoints"] = nlohmann::json::array();
  std::vector<fs::path> folders;
  if (fs::exists(run / "checkpoints")) {
    for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
      if (entry.is_directory()) folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  result.text += fmt::format("  {} checkpoints\n", folders.size());
  for (const fs::path& folder : folders) {
    if (folder.extension() == ".partial") {
      result.text += fmt::format("    {}  not completed\n", folder.string());
      result.data["checkpoints"].push_back({{"path", folder.string()}, {"complete", false}});
      continue;
    }
    try {
      const CheckpointReader reader(folder);
      result.text += fmt::format("    {}  step {}, {} tokens\n", folder.string(), reader.state().step,
                                 with_commas(reader.state().tokens));
      result.data["checkpoints"].push_back({{"path", folder.string()},
                                            {"complete", true},
                                            {"step", reader.state().step},
                                            {"tokens", reader.state().tokens}});
    } catch (const InputError& error) {
      result.text += fmt::format("    {}  damaged\n", folder.string());
      result.data["checkpoints"].push_back({{"path", folder.string()}, {"complete", false}});
      result.problems.emplace_back(error.what());
    }
  }
}
}  // namespace

Inspection inspect_run(const fs::path& run) {
  Inspection result;
  result.text = fmt::format("run {}\n", run.string());
  result.data = {{"kind", "run"}, {"path", run.string()}};
  add_status(run, result);
  add_metrics(run, result);
  add_accounts(run, result);
  add_checkpoints(run, result);
  return result;
}

}  // namespace hat
