#pragma once
#include <algorithm>
#include <cstdint>

#include "hat/config/deck.hpp"

namespace hat {

/// How late a push of unbounded training is.
struct PushAge {
  int64_t versions = 0;  ///< updates of the block between the parameters it was computed with and now
  double seconds = 0;    ///< since those parameters were asked for
};

inline bool is_over(const StalenessLimitConfig& limit, const PushAge& late) {
  return (limit.versions > 0 && late.versions > limit.versions) || (limit.seconds > 0 && late.seconds > limit.seconds);
}

/// What a gradient is multiplied by where staleness.over_limit = scale: limit / staleness, the smaller of the two where
/// both limits are set; 1 within the limits.
inline double limit_factor(const StalenessLimitConfig& limit, const PushAge& late) {
  double factor = 1.0;
  if (limit.versions > 0 && late.versions > limit.versions) {
    factor = static_cast<double>(limit.versions) / static_cast<double>(late.versions);
  }
  if (limit.seconds > 0 && late.seconds > limit.seconds) factor = std::min(factor, limit.seconds / late.seconds);
  return factor;
}

}  // namespace hat
