#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace hat {

/// A line on standard output. Lines of a run are read while it runs (a terminal, tail -f on a job's output), so each
/// leaves at once.
inline void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

/// 0 of nothing.
inline double mean(double sum, int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0.0; }

}  // namespace hat
