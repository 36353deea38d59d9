#include <gtest/gtest.h>

#include "hat/server/time_limit.hpp"
#include "model_support.hpp"

namespace hat {
namespace {

class TimeLimitTest : public ::testing::Test {
 protected:
  TimeLimitTest() {
    Deck deck;
    deck.model = test::small_llama();
    plan_ = make_run_plan(deck, plan_roles({0, 0}, 1, Placement::packed));
  }

  RunPlan plan_;
};

TEST_F(TimeLimitTest, IsNeverNearWhereThereIsNone) {
  TimeLimit limit(plan_, 0);
  EXPECT_FALSE(limit.is_set());
  limit.step_done(1e9);
  EXPECT_FALSE(limit.is_near(3, 1e12));
}

TEST_F(TimeLimitTest, LeavesTimeForStepsCheckpointAndMargin) {
  plan_.deadline = {.at_s = 1000, .source = "time_limit"};
  TimeLimit limit(plan_, 0);
  const double at_first = limit.ending_seconds(0);
  EXPECT_GE(at_first, 3);  // the margin; of a checkpoint nothing is known
  EXPECT_LT(at_first, 70);
  limit.checkpoint_took(20);
  EXPECT_NEAR(limit.ending_seconds(0), 50 + 30, 1e-9);  // 5 % of the time, 1.5 times the checkpoint
  limit.step_done(10);
  EXPECT_NEAR(limit.ending_seconds(2), 50 + 30 + 30, 1e-9);
  limit.checkpoint_took(5);
  EXPECT_NEAR(limit.ending_seconds(2), 110, 1e-9) << "the slowest checkpoint counts";
  EXPECT_FALSE(limit.is_near(2, 889));
  EXPECT_TRUE(limit.is_near(2, 891));
}

TEST_F(TimeLimitTest, ValidationIsNoStep) {
  plan_.deadline = {.at_s = 1000, .source = "time_limit"};
  TimeLimit limit(plan_, 0);
  limit.training_goes_on(400);
  limit.step_done(401);
  EXPECT_LT(limit.ending_seconds(1) - limit.ending_seconds(0), 2);
}

TEST_F(TimeLimitTest, AnOldSlowStepIsForgotten) {
  plan_.deadline = {.at_s = 100000, .source = "Slurm"};
  TimeLimit limit(plan_, 0);
  limit.step_done(500);
  for (int step = 1; step <= 40; ++step) limit.step_done(500 + step);
  EXPECT_NEAR(limit.ending_seconds(2) - limit.ending_seconds(0), 3, 1e-9);
}

}  // namespace
}  // namespace hat
