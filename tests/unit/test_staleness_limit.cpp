#include <gtest/gtest.h>

#include "hat/gradient/staleness_limit.hpp"

namespace hat {
namespace {

TEST(StalenessLimit, Versions) {
  const StalenessLimitConfig limit{.versions = 4, .seconds = 0};
  EXPECT_TRUE(limit.is_set());
  EXPECT_FALSE(is_over(limit, {.versions = 4, .seconds = 1e9}));
  EXPECT_TRUE(is_over(limit, {.versions = 5, .seconds = 0}));
  EXPECT_EQ(limit_factor(limit, {.versions = 4, .seconds = 0}), 1.0);
  EXPECT_EQ(limit_factor(limit, {.versions = 0, .seconds = 0}), 1.0);
  EXPECT_EQ(limit_factor(limit, {.versions = 16, .seconds = 0}), 0.25);
}

TEST(StalenessLimit, Seconds) {
  const StalenessLimitConfig limit{.versions = 0, .seconds = 0.5};
  EXPECT_FALSE(is_over(limit, {.versions = 1000, .seconds = 0.5}));
  EXPECT_TRUE(is_over(limit, {.versions = 0, .seconds = 0.6}));
  EXPECT_EQ(limit_factor(limit, {.versions = 1000, .seconds = 0.25}), 1.0);
  EXPECT_EQ(limit_factor(limit, {.versions = 0, .seconds = 2.0}), 0.25);
}

TEST(StalenessLimit, TheNarrowerOfTwoCounts) {
  const StalenessLimitConfig limit{.versions = 2, .seconds = 1.0};
  EXPECT_EQ(limit_factor(limit, {.versions = 4, .seconds = 10.0}), 0.1);
  EXPECT_EQ(limit_factor(limit, {.versions = 40, .seconds = 10.0}), 0.05);
  EXPECT_TRUE(is_over(limit, {.versions = 1, .seconds = 1.5}));
  EXPECT_TRUE(is_over(limit, {.versions = 3, .seconds = 0.5}));
}

TEST(StalenessLimit, OffLimitsNothing) {
  const StalenessLimitConfig off;
  EXPECT_FALSE(off.is_set());
  EXPECT_FALSE(is_over(off, {.versions = 1'000'000, .seconds = 1e9}));
  EXPECT_EQ(limit_factor(off, {.versions = 1'000'000, .seconds = 1e9}), 1.0);
}

}  // namespace
}  // namespace hat
