#include "hat/optimizer/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hat {

double schedule_factor(const ScheduleConfig& config, int64_t step, int64_t steps) {
  const double warmup = config.warmup_steps > 0
                            ? std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps))
                            : 1.0;
  if (config.kind == ScheduleKind::constant) return warmup;
  const int64_t decaying = steps - 1 - config.warmup_steps;
  const double progress =
      decaying > 0
          ? std::clamp(static_cast<double>(step - config.warmup_steps) / static_cast<double>(decaying), 0.0, 1.0)
          : 0.0;
  const double shape =
      config.kind == ScheduleKind::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return warmup * (config.final_fraction + (1.0 - config.final_fraction) * shape);
}

}  // namespace hat
