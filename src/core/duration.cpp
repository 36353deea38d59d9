#include "hat/core/duration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <vector>

namespace hat {

namespace {

constexpr double kMinute_s = 60;
constexpr double kHour_s = 3600;
constexpr double kDay_s = 86400;
constexpr double kMost_s = 100 * 366 * kDay_s;

/// Digits and nothing else.
std::optional<int64_t> parse_count(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || static_cast<double>(value) > kMost_s) return std::nullopt;
  return value;
}

std::optional<double> parse_seconds(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The numbers between colons; empty when one is none, or one behind a colon is above 59.
std::vector<double> parse_fields(std::string_view text) {
  std::vector<double> fields;
  while (true) {
    const size_t colon = text.find(':');
    const std::optional<int64_t> field = parse_count(text.substr(0, colon));
    if (!field || (!fields.empty() && *field > 59)) return {};
    fields.push_back(static_cast<double>(*field));
    if (colon == std::string_view::npos) return fields;
    text.remove_prefix(colon + 1);
  }
}

}  // namespace

std::optional<double> parse_duration(std::string_view text) {
  const size_t dash = text.find('-');
  std::optional<double> seconds;
  if (dash != std::string_view::npos) {
    const std::optional<int64_t> days = parse_count(text.substr(0, dash));
    const std::vector<double> fields = parse_fields(text.substr(dash + 1));
    if (!days || fields.empty() || fields.size() > 3 || fields[0] > 23) return std::nullopt;
    seconds = static_cast<double>(*days) * kDay_s + fields[0] * kHour_s;
    if (fields.size() > 1) *seconds += fields[1] * kMinute_s;
    if (fields.size() > 2) *seconds += fields[2];
  } else if (text.find(':') != std::string_view::npos) {
    const std::vector<double> fields = parse_fields(text);
    if (fields.size() < 2 || fields.size() > 3) return std::nullopt;
    seconds = 0;
    for (const double field : fields) seconds = *seconds * kMinute_s + field;
  } else {
    seconds = parse_seconds(text);
  }
  if (!seconds || !(*seconds <= kMost_s)) return std::nullopt;
  return seconds;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, kMost_s));
  constexpr int64_t kMinute = 60;
  return fmt::format("{}:{:02}:{:02}", whole / kMinute / kMinute, whole / kMinute % kMinute, whole % kMinute);
}

}  // namespace hat
