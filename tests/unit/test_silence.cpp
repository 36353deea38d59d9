#include <gtest/gtest.h>

#include "hat/core/clock.hpp"
#include "hat/core/silence.hpp"

namespace hat {
namespace {

/// Looks every `every_s` until the silence is too long; seconds that takes.
double seconds_until_too_long(Silence& silence, double start_s, double every_s) {
  double now = start_s;
  do {
    now += every_s;
  } while (!silence.is_too_long(now));
  return now - start_s;
}

TEST(Silence, LastsAsLongAsTheTimeOut) {
  Silence silence(8);
  silence.end();
  EXPECT_NEAR(seconds_until_too_long(silence, now_s(), 0.5), 8.5, 0.6);
}

TEST(Silence, EndsWithAWord) {
  Silence silence(8);
  silence.end();
  const double start_s = now_s();
  for (int i = 1; i < 16; ++i) ASSERT_FALSE(silence.is_too_long(start_s + 0.5 * i));
  silence.end();
  EXPECT_NEAR(seconds_until_too_long(silence, now_s(), 0.5), 8.5, 0.6);
}

// Who was stopped, or computed, for an hour has not listened for an hour.
TEST(Silence, DoesNotCountTimeInWhichNobodyListened) {
  Silence silence(8);
  silence.end();
  const double start_s = now_s();
  EXPECT_FALSE(silence.is_too_long(start_s + 3600));
  EXPECT_GT(seconds_until_too_long(silence, start_s + 3600, 0.5), 6);
}

}  // namespace
}  // namespace hat
