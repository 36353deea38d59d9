#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "hat/optimizer/schedule.hpp"

namespace hat {
namespace {

ScheduleConfig config_of(ScheduleKind kind, int64_t warmup, double final_fraction) {
  return {.kind = kind, .warmup_steps = warmup, .final_fraction = final_fraction};
}

TEST(Schedule, WarmsUpLinearlyFromTheFirstStep) {
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant}) {
    const ScheduleConfig config = config_of(kind, 8, 0.1);
    for (int64_t step = 0; step < 8; ++step) {
      EXPECT_DOUBLE_EQ(schedule_factor(config, step, 100), static_cast<double>(step + 1) / 8.0);
    }
    EXPECT_DOUBLE_EQ(schedule_factor(config, 8, 100), 1.0) << "the peak";
  }
}

TEST(Schedule, NoWarmUpStartsAtThePeak) {
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant}) {
    EXPECT_DOUBLE_EQ(schedule_factor(config_of(kind, 0, 0.1), 0, 50), 1.0);
  }
}

TEST(Schedule, CosineAndLinearFollowTheirFormulas) {
  constexpr int64_t kWarmup = 5;
  constexpr int64_t kSteps = 46;  // 40 steps from the peak to the last one
  for (int64_t step = kWarmup; step < kSteps; ++step) {
    const double x = static_cast<double>(step - kWarmup) / 40.0;
    EXPECT_NEAR(schedule_factor(config_of(ScheduleKind::cosine, kWarmup, 0.2), step, kSteps),
                0.2 + 0.8 * 0.5 * (1.0 + std::cos(std::numbers::pi * x)), 1e-14);
    EXPECT_NEAR(schedule_factor(config_of(ScheduleKind::linear, kWarmup, 0.2), step, kSteps), 1.0 - 0.8 * x, 1e-14);
    EXPECT_EQ(schedule_factor(config_of(ScheduleKind::constant, kWarmup, 0.2), step, kSteps), 1.0);
  }
}

TEST(Schedule, EndsAtTheFinalFractionAndStaysThere) {
  for (const double final_fraction : {0.0, 0.1, 1.0}) {
    for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear}) {
      EXPECT_NEAR(schedule_factor(config_of(kind, 10, final_fraction), 99, 100), final_fraction, 1e-15);
      EXPECT_NEAR(schedule_factor(config_of(kind, 10, final_fraction), 150, 100), final_fraction, 1e-15);
    }
  }
}

TEST(Schedule, ARunShorterThanItsWarmUpOnlyRises) {
  for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant}) {
    for (int64_t step = 0; step < 6; ++step) {
      EXPECT_DOUBLE_EQ(schedule_factor(config_of(kind, 20, 0.1), step, 6), static_cast<double>(step + 1) / 20.0);
    }
  }
}

}  // namespace
}  // namespace hat
