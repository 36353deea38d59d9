#pragma once
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace hat {

/// Seconds of a time span as people and Slurm write it: "90" or "90.5" (seconds), "M:SS", "H:MM:SS", "D-HH", "D-HH:MM",
/// "D-HH:MM:SS". Empty for anything else, also for minutes or seconds above 59 behind a colon, hours above 23 behind
/// days, and spans beyond a hundred years.
std::optional<double> parse_duration(std::string_view text);

/// "0:00:59", "27:46:40": hours, minutes, whole seconds.
std::string duration_text(double seconds);

/// When something has to be over, and who says so. `at_s`: on the clock of now_s() of this process.
struct Deadline {
  double at_s = std::numeric_limits<double>::infinity();
  std::string source = {};  ///< "time_limit", "Slurm"
};

}  // namespace hat
