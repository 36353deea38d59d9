#include "hat/config/checks.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>

#include "hat/core/duration.hpp"

namespace hat {

namespace {

/// The whole of `text` as a number in decimal notation; a leading '+' is allowed.
template <class T>
std::from_chars_result parse_number(const std::string& text, T& value) {
  const char* begin = text.data() + (text.starts_with("+") && !text.starts_with("+-") ? 1 : 0);
  const char* end = text.data() + text.size();
  std::from_chars_result result = std::from_chars(begin, end, value);
  if (result.ec == std::errc{} && result.ptr != end) result.ec = std::errc::invalid_argument;
  return result;
}

bool excludes_least(Ends ends) { return ends == Ends::without_least || ends == Ends::neither; }
bool excludes_most(Ends ends) { return ends == Ends::without_most || ends == Ends::neither; }

bool is_inside(double value, double least, double most, Ends ends) {
  if (excludes_least(ends) && value <= least) return false;
  if (excludes_most(ends) && value >= most) return false;
  return value >= least && value <= most;
}

}  // namespace

CLI::Validator integer_in(int64_t least, int64_t most) {
  const bool open = most == std::numeric_limits<int64_t>::max();
  std::string range =
      open ? fmt::format("an integer of at least {}", least) : fmt::format("an integer from {} to {}", least, most);
  auto check = [least, most, range](std::string& text) -> std::string {
    int64_t value = 0;
    const std::errc status = parse_number(text, value).ec;
    const size_t first_digit = text.find_first_not_of("+-");
    const bool octal = first_digit + 1 < text.size() && text[first_digit] == '0';  // CLI11 would read 010 as 8
    if (status == std::errc{} && !octal && value >= least && value <= most) return "";
    return fmt::format("must be {}, not '{}'", range, text);
  };
  return CLI::Validator(check, open ? fmt::format("[>= {}]", least) : fmt::format("[{} - {}]", least, most));
}

CLI::Validator time_span() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (parse_duration(text)) return "";
        return fmt::format("must be seconds, M:SS, H:MM:SS or D-HH:MM:SS, not '{}'", text);
      },
      "[s, M:SS, H:MM:SS or D-HH:MM:SS]");
}

CLI::Validator true_or_false() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "true" || text == "false") return "";
        return fmt::format("must be true or false, not '{}'", text);
      },
      "");  // what help shows of a flag, OptionSet writes
}

CLI::Validator real_in(double least, double most, Ends ends) {
  const char* note = "";
  if (ends == Ends::without_least) note = " (above the lower end)";
  if (ends == Ends::without_most) note = " (below the upper end)";
  if (ends == Ends::neither) note = " (both ends left out)";
  std::string range = fmt::format("a number from {} to {}{}", least, most, note);
  auto check = [least, most, ends, range](std::string& text) -> std::string {
    double value = 0.0;
    const std::errc status = parse_number(text, value).ec;
    if (status == std::errc{} && std::isfinite(value) && is_inside(value, least, most, ends)) return "";
    return fmt::format("must be {}, not '{}'", range, text);
  };
  return CLI::Validator(check, fmt::format("{}{} - {}{}", excludes_least(ends) ? "(" : "[", least, most,
                                           excludes_most(ends) ? ")" : "]"));
}

}  // namespace hat
