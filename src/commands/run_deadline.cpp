#include "commands/run_deadline.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>

#include "hat/core/clock.hpp"

namespace hat {

namespace {

std::optional<double> environment_count(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || std::string_view(text).find(':') != std::string_view::npos ? std::nullopt
                                                                                       : parse_duration(text);
}

/// The first line that the command writes; empty when there is none.
std::string first_line_of(const std::string& command) {
  const auto close = [](FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(::popen(command.c_str(), "r"), close);
  std::array<char, 64> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "";
  std::string text = line.data();
  return text.substr(0, text.find_last_not_of(" \n") + 1);
}

/// Seconds that the job has left. Newer Slurms put its end into the environment; 22.05 has to be asked.
std::optional<double> left_by_slurm() {
  const std::optional<double> job = environment_count("SLURM_JOB_ID");
  if (!job) return std::nullopt;
  if (const std::optional<double> end = environment_count("SLURM_JOB_END_TIME")) {
    return *end - static_cast<double>(std::time(nullptr));
  }
  // A controller that is down lets squeue wait for a long time. UNLIMITED and NOT_SET are no durations.
  return parse_duration(first_line_of(fmt::format("timeout 5 squeue -h -j {:.0f} -o %L 2>/dev/null", *job)));
}

}  // namespace

Deadline run_deadline(const Deck& deck, double begin_s) {
  Deadline deadline;
  const double limit_s = parse_duration(deck.time_limit).value_or(0.0);
  if (limit_s > 0) deadline = {.at_s = begin_s + limit_s, .source = "time_limit"};
  const std::optional<double> left_s = left_by_slurm();
  if (left_s && now_s() + *left_s < deadline.at_s) deadline = {.at_s = now_s() + *left_s, .source = "Slurm"};
  return deadline;
}

std::string describe_deadline(const Deadline& deadline) {
  if (!std::isfinite(deadline.at_s)) return "";
  const double left_s = deadline.at_s - now_s();
  const std::time_t end = std::time(nullptr) + static_cast<std::time_t>(std::llround(left_s));
  return fmt::format("time limit: {} left ({}), until {:%F %T}; the run stops before that, with a checkpoint",
                     duration_text(left_s), deadline.source, fmt::localtime(end));
}

}  // namespace hat
