#include "hat/io/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hat/core/clock.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {
constexpr double kTerminalInterval_s = 0.1;
constexpr double kLogInterval_s = 5.0;
constexpr int kBarWidth = 30;
}  // namespace

Progress::Progress(std::string label, int64_t total_bytes)
    : label_(std::move(label)),
      total_bytes_(total_bytes),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_s_(now_s()),
      shown_s_(start_s_) {}

Progress::~Progress() {
  if (is_terminal_) fmt::print(stderr, "\r\033[K");  // the summary that follows says it better
}

void Progress::update(int64_t done_bytes) {
  done_bytes_ = done_bytes;
  const double now = now_s();
  if (now - shown_s_ < (is_terminal_ ? kTerminalInterval_s : kLogInterval_s)) return;
  shown_s_ = now;
  show(now);
}

void Progress::show(double now) const {
  const double rate = static_cast<double>(done_bytes_) / std::max(now - start_s_, 1e-9);
  std::string text = fmt::format("{}: {}", label_, human_bytes(done_bytes_));
  if (total_bytes_ > 0) {
    const double share = std::clamp(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_), 0.0, 1.0);
    const int filled = static_cast<int>(share * kBarWidth);
    if (is_terminal_) text = fmt::format("{} [{:#<{}}{:.<{}}]", label_, "", filled, "", kBarWidth - filled);
    text += fmt::format(" {:.0f} % of {}", 100.0 * share, human_bytes(total_bytes_));
  }
  text += fmt::format(", {}/s", human_bytes(static_cast<int64_t>(rate)));
  fmt::print(stderr, "{}{}{}", is_terminal_ ? "\r" : "", text, is_terminal_ ? "\033[K" : "\n");
  std::fflush(stderr);
}

}  // namespace hat
