#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "commands/inspect.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/server/replay.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();

/// Reads every gradient of an attempt and holds it against its checksum.
void read_gradients(GradientLogReader& log, const GradientLogReader::Attempt& attempt,
                    std::vector<std::string>& problems) {
  const LogPayload payload = attempt.header.payload;
  const int64_t end = log.end_of(attempt);  // what is behind it counts no more, damaged or not
  std::vector<float> values;
  for (int64_t server = 0; server < attempt.header.servers; ++server) {
    try {
      if (payload == LogPayload::sum) {
        for (const LoggedUpdate& update : log.updates(attempt, server, 0, end)) {
          log.read(attempt, server, update, values);
        }
      } else if (payload == LogPayload::push) {
        for (const GradientLogReader::Push& push : log.pushes(attempt, server, 0, end)) {
          log.read(attempt, server, push.row, values);
        }
      }
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
  }
}

}  // namespace

void add_log(const fs::path& run, ReadContents contents, Inspection& result) {
  result.data["log"] = nlohmann::json::array();
  if (!fs::exists(run / "log")) return;
  if (!fs::is_directory(run / "log")) {
    result.problems.push_back(fmt::format("{}: is no folder", (run / "log").string()));
    return;
  }
  GradientLogReader log(run);
  std::vector<std::string> problems;
  std::vector<std::string> whole_folders;  // of older attempts of which all is there that counts
  for (const GradientLogReader::Attempt& attempt : log.attempts()) {
    int64_t first = kEverything;
    std::uintmax_t bytes = 0;
    for (const LoggedSegment& segment : attempt.segments) {
      first = std::min(first, segment.first_step);
      std::error_code gone;  // a training run removes what it does not need any more
      const std::uintmax_t size = fs::file_size(segment.file, gone);
      if (!gone) bytes += size;
    }
    int64_t end = first;
    try {
      const RunPlan plan = plan_of(attempt.header);
      end = complete_stretch(log, attempt, plan, first, kEverything).end;
      const int64_t counts_until = log.end_of(attempt);
      const int64_t computed = complete_stretch(log, attempt, plan, first, kEverything, RebuiltFrom::computations).end;
      if (computed >= counts_until) whole_folders.push_back(attempt.segments.front().file.parent_path().string());
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
    if (contents == ReadContents::yes) read_gradients(log, attempt, problems);
    const std::string payload = name_of(attempt.header.payload);
    result.text += fmt::format("  gradient log, attempt {}: {}, payload {}, {} file{}, {}\n", attempt.header.number,
                               end > first ? fmt::format("steps {} to {}", first + 1, end) : "no step to recover",
                               payload, attempt.segments.size(), attempt.segments.size() == 1 ? "" : "s",
                               human_bytes(static_cast<int64_t>(bytes)));
    result.data["log"].push_back({{"attempt", attempt.header.number},
                                  {"first_step", first},
                                  {"end_step", end},
                                  {"payload", payload},
                                  {"servers", attempt.header.servers},
                                  {"files", attempt.segments.size()},
                                  {"bytes", bytes}});
  }
  std::ranges::copy_if(log.problems(), std::back_inserter(problems), [&](const std::string& problem) {
    return std::ranges::none_of(whole_folders,
                                [&](const std::string& folder) { return problem.starts_with(folder + "/"); });
  });
  for (const std::string& problem : problems) {
    const std::string file = problem.substr(0, problem.find(':'));
    const bool is_gone = file.starts_with(run.string()) && !fs::exists(file);
    const bool is_known = std::ranges::find(result.problems, problem) != result.problems.end();
    if (!is_gone && !is_known) result.problems.push_back(problem);
  }
}

}  // namespace hat
