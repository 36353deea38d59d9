#pragma once
#include <cstdint>
#include <string>

namespace hat {

/// Progress of long work on standard error: a bar that redraws itself on a terminal, a line every few seconds elsewhere
/// (log files). Work that is done sooner than that shows nothing in a log.
class Progress {
 public:
  /// `total_bytes` = 0: not known, only what is done is shown.
  Progress(std::string label, int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Cheap: most calls only look at the clock.
  void update(int64_t done_bytes);

 private:
  void show(double now) const;
  std::string label_;
  int64_t total_bytes_;
  int64_t done_bytes_ = 0;
  bool is_terminal_;
  double start_s_;
  double shown_s_;
};

}  // namespace hat
