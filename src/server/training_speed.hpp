#pragma once
#include <cstdint>
#include <optional>

namespace hat {

/// Tokens per second of the step lines: of what workers reported since the last line that told a speed.
///
/// Where several steps end in one moment their lines follow each other at once, and a report between two of them would
/// be divided by almost nothing; a line that comes earlier than a quarter of the usual time between two lines tells no
/// speed and leaves its tokens to the next.
class TrainingSpeed {
 public:
  /// `now`: seconds, as in all calls.
  explicit TrainingSpeed(double now) : last_told_(now) {}

  void reported(int64_t tokens) { tokens_ += tokens; }

  /// Validation of `seconds` has come to its end: it does not count as training.
  void pause(double seconds) { last_told_ += seconds; }

  /// A line is written `now`: tokens per second, or none where there is nothing to tell.
  std::optional<double> at_line(double now) {
    ++lines_;
    const double interval = now - last_told_;
    if (tokens_ == 0 || interval < 0.25 * (told_ + interval) / static_cast<double>(lines_)) return std::nullopt;
    const double speed = static_cast<double>(tokens_) / interval;
    told_ += interval;
    last_told_ = now;
    tokens_ = 0;
    return speed;
  }

 private:
  double last_told_;  // seconds, moved by what does not count
  double told_ = 0;   // seconds of all speeds that were told
  int64_t lines_ = 0;
  int64_t tokens_ = 0;  // reported since `last_told_`
};

}  // namespace hat
