#include <gtest/gtest.h>

#include "server/training_speed.hpp"

namespace hat {
namespace {

TEST(TrainingSpeed, IsOfTheTimeSinceTheLastLine) {
  TrainingSpeed speed(100);
  speed.reported(500);
  EXPECT_DOUBLE_EQ(speed.at_line(102).value(), 250);
  speed.reported(100);
  speed.reported(200);
  EXPECT_DOUBLE_EQ(speed.at_line(103).value(), 300);
}

TEST(TrainingSpeed, ALineWithoutReportsTellsNone) {
  TrainingSpeed speed(0);
  EXPECT_FALSE(speed.at_line(1));
  speed.reported(600);
  EXPECT_DOUBLE_EQ(speed.at_line(3).value(), 200);
}

TEST(TrainingSpeed, ValidationDoesNotCount) {
  TrainingSpeed speed(0);
  speed.reported(100);
  speed.at_line(1);
  speed.pause(50);
  speed.reported(100);
  EXPECT_DOUBLE_EQ(speed.at_line(52).value(), 100);
}

// A report of 1216 tokens between two lines 0.25 ms apart was five million tokens per second.
TEST(TrainingSpeed, LinesOfOneMomentAreNoSpeeds) {
  TrainingSpeed speed(0);
  double now = 0;
  double tokens = 0;
  for (int step = 0; step < 40; ++step) {
    now += step % 4 == 0 ? 0.08 : 0.0002;
    speed.reported(1000);
    tokens += 1000;
    if (const auto told = speed.at_line(now)) {
      EXPECT_LT(*told, 4 * tokens / now) << "step " << step;
    } else {
      EXPECT_NE(step % 4, 0) << "step " << step;
    }
  }
}

TEST(TrainingSpeed, FasterTrainingIsToldAgain) {
  TrainingSpeed speed(0);
  speed.reported(1000);
  speed.at_line(10);
  double now = 10;
  int told = 0;
  for (int line = 0; line < 200; ++line) {
    now += 0.1;
    speed.reported(100);
    if (const auto value = speed.at_line(now)) {
      ++told;
      EXPECT_NEAR(*value, 1000, 1);
    }
  }
  EXPECT_GT(told, 40);
}

}  // namespace
}  // namespace hat
