#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "hat/ledger/split_trial.hpp"

// Steps whose seconds depend on whether they are split: does the trial end up with what is faster, and at what cost?

namespace hat {
namespace {

constexpr int64_t kWorkers = 16;

struct Cluster {
  double split_s;    // a step that is split takes
  double unsplit_s;  // and one that is not
  double longest_s;  // its longest sequence takes one worker
  double work_s = kWorkers;
  int64_t staleness = 1;
  double spread = 0;  // every other step takes so much longer, as a share
  int64_t gangs = 3;  // of a step that is split
};

struct Result {
  double seconds = 0;  // without pauses
  int64_t unsplit_steps = 0;
  std::vector<SplitDecision> decisions;
  std::optional<SplitDecision> unfinished;
  std::map<int64_t, bool> is_split;  // by step
};

/// `unplanned`: first steps whose plan knew no times; they have gangs whatever the others have.
Result run(const Cluster& cluster, int64_t steps, int64_t pause_every = 0, int64_t unplanned = 0) {
  SplitTrial trial(kWorkers, cluster.staleness);
  Result result;
  int64_t opened = 0;
  double now_s = 0;
  const int64_t every = pause_every == 0 ? steps : pause_every;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t pause = std::min(steps, (step / every + 1) * every);
    if (step % every == 0) {
      trial.pause();
      now_s += 100;  // of validation
      trial.resume(now_s, pause - step);
    }
    for (; opened < std::min(pause, step + cluster.staleness + 2); ++opened) {  // work is handed out ahead
      result.is_split[opened] = opened < unplanned || trial.may_split(opened);
    }
    const double shape = step % 2 == 0 ? 1 + cluster.spread : 1 - cluster.spread;
    double seconds = shape * (result.is_split[step] ? cluster.split_s : cluster.unsplit_s);
    // The first step behind a pause has nothing of those before to overlap with.
    if (pause_every > 0 && step % every == 0) seconds *= static_cast<double>(1 + cluster.staleness);
    now_s += seconds;
    result.seconds += seconds;
    trial.committed(step, shape * cluster.work_s, shape * cluster.longest_s,
                    result.is_split[step] && step >= unplanned ? cluster.gangs : 0, now_s);
    for (const SplitDecision& decision : trial.take_decisions()) result.decisions.push_back(decision);
  }
  result.unsplit_steps = trial.unsplit_steps();
  result.unfinished = trial.unfinished();
  return result;
}

TEST(SplitTrialTest, StopsSplittingWhereThatIsSlower) {
  for (const int64_t staleness : {0, 1, 4}) {
    const Cluster slow_network{
        .split_s = 1.5, .unsplit_s = 1.1, .longest_s = 0.9, .staleness = staleness, .spread = 0.3};
    const Result result = run(slow_network, 2000);
    EXPECT_LE(result.seconds, 1.02 * 1.1 * 2000) << staleness;
  }
}

TEST(SplitTrialTest, GoesOnSplittingWhereThatIsFaster) {
  for (const int64_t staleness : {0, 1, 4}) {
    const Cluster cluster{.split_s = 1.2, .unsplit_s = 1.6, .longest_s = 0.9, .staleness = staleness, .spread = 0.3};
    EXPECT_LE(run(cluster, 2000).seconds, 1.02 * 1.2 * 2000) << staleness;
  }
}

// The longest sequence alone takes longer than the step did: nothing is tried.
TEST(SplitTrialTest, TriesNothingThatCannotBeBetter) {
  const Cluster cluster{.split_s = 1.2, .unsplit_s = 5, .longest_s = 5, .staleness = 0, .spread = 0.3};
  EXPECT_EQ(run(cluster, 500).unsplit_steps, 0);
  const Cluster nearly_full{.split_s = 1.02, .unsplit_s = 5, .longest_s = 0.5};
  EXPECT_EQ(run(nearly_full, 500).unsplit_steps, 0);
}

// Steps without gangs say nothing about them; nor do the gangs of steps that were planned before any time was known.
TEST(SplitTrialTest, TriesNothingWithoutGangs) {
  const Cluster cluster{.split_s = 1.5, .unsplit_s = 1.5, .longest_s = 0.5, .gangs = 0};
  for (const int64_t unplanned : {0, 1, 3, 7}) {
    const Result result = run(cluster, 500, 0, unplanned);
    EXPECT_EQ(result.unsplit_steps, 0) << unplanned;
    EXPECT_TRUE(result.decisions.empty()) << unplanned;
  }
}

// Validation between two steps is no time of theirs, and the step behind it, in which workers fill up, says nothing.
TEST(SplitTrialTest, LeavesPausesOut) {
  for (const int64_t staleness : {0, 1, 4}) {
    const Cluster slow_network{.split_s = 1.5, .unsplit_s = 1.1, .longest_s = 0.9, .staleness = staleness};
    const Result result = run(slow_network, 2000, 50);
    EXPECT_LE(result.seconds, 1.025 * 1.1 * (2000 + 40 * static_cast<double>(staleness))) << staleness;
    const Cluster cluster{.split_s = 1.1, .unsplit_s = 1.2, .longest_s = 0.9, .staleness = staleness};
    for (const SplitDecision& decision : run(cluster, 500, 50).decisions) {
      EXPECT_EQ(decision.taken, Splitting::planned) << staleness;
      EXPECT_NEAR(decision.utilization_of(Splitting::planned), 1 / 1.1, 1e-6) << staleness;
      EXPECT_NEAR(decision.utilization_of(Splitting::off), 1 / 1.2, 1e-6) << staleness;
    }
  }
}

// However often there is validation, the better way is found.
TEST(SplitTrialTest, PausesOfAnyFrequency) {
  for (int64_t every = 1; every <= 24; ++every) {
    for (const int64_t staleness : {0, 1, 4}) {
      for (const double split_s : {1.0, 1.6}) {
        const Cluster cluster{
            .split_s = split_s, .unsplit_s = 1.3, .longest_s = 0.6, .work_s = 0.9 * kWorkers, .staleness = staleness};
        const Result result = run(cluster, 400, every);
        ASSERT_FALSE(result.decisions.empty()) << every << ' ' << staleness;
        EXPECT_LE(result.decisions.front().first_step, 40) << every << ' ' << staleness;
        for (const SplitDecision& decision : result.decisions) {
          EXPECT_EQ(decision.taken, split_s < 1.3 ? Splitting::planned : Splitting::off) << every << ' ' << staleness;
        }
      }
    }
  }
}

// What is said of a trial is what was done.
TEST(SplitTrialTest, SaysWhatWasDone) {
  for (const int64_t pause_every : {0, 3, 50}) {
    for (const double split_s : {1.2, 1.6}) {
      const Cluster cluster{.split_s = split_s, .unsplit_s = 1.4, .longest_s = 0.9, .spread = 0.3};
      const Result result = run(cluster, 300, pause_every);
      ASSERT_GE(result.decisions.size(), 2U);
      Splitting before = Splitting::planned;
      for (const SplitDecision& decision : result.decisions) {
        EXPECT_NE(decision.tried, before);
        const auto is_tried = [&](int64_t step) {
          return result.is_split.at(step) == (decision.tried == Splitting::planned);
        };
        for (int64_t step = decision.first_step; step < decision.end_step; ++step) EXPECT_TRUE(is_tried(step)) << step;
        EXPECT_FALSE(is_tried(decision.first_step - 1));
        EXPECT_EQ(is_tried(decision.end_step), decision.taken == decision.tried);
        EXPECT_GE(decision.end_step - decision.first_step, 8);
        EXPECT_LE(decision.end_step - decision.first_step, 14);
        EXPECT_EQ(decision.utilization_of(Splitting::planned) > decision.utilization_of(Splitting::off),
                  decision.taken == Splitting::planned);
        before = decision.taken;
      }
    }
  }
}

// A trial that the end of the run cuts off is no decision.
TEST(SplitTrialTest, AnUnfinishedTrial) {
  const Cluster cluster{.split_s = 1.2, .unsplit_s = 1.6, .longest_s = 0.9};
  const int64_t begins = run(cluster, 300).decisions.at(0).first_step;
  const Result result = run(cluster, begins + 3);
  EXPECT_TRUE(result.decisions.empty());
  ASSERT_TRUE(result.unfinished);
  EXPECT_EQ(result.unfinished->first_step, begins);
  EXPECT_EQ(result.unfinished->end_step, begins + 3);
  EXPECT_EQ(steps_text(*result.unfinished, false), fmt::format("steps {} to {} without gangs", begins + 1, begins + 3));
  EXPECT_FALSE(run(cluster, 300).unfinished);
}

// README: a first trial takes eight steps and 2 (S + 1), and ends after some 20 + 5 S.
TEST(SplitTrialTest, HowLongItTakes) {
  for (const int64_t staleness : {0, 1, 4}) {
    const Cluster cluster{.split_s = 1.2, .unsplit_s = 1.6, .longest_s = 0.9, .staleness = staleness};
    const SplitDecision first = run(cluster, 300, 0, staleness + 2).decisions.at(0);
    EXPECT_EQ(first.end_step - first.first_step, 8 + 2 * (staleness + 1)) << staleness;
    EXPECT_NEAR(static_cast<double>(first.end_step), 20 + 5 * static_cast<double>(staleness), 3);
  }
}

TEST(SplitDecisionTest, InWords) {
  SplitDecision decision{.first_step = 17, .end_step = 27, .utilization = {0.66, 0.614}, .gangs = 5};
  EXPECT_EQ(text_of(decision, false),
            "steps 18 to 27 without gangs: utilization 61.4 % against 66.0 % with: gangs stay");
  decision.taken = Splitting::off;
  EXPECT_EQ(text_of(decision, true),
            "steps 18 to 27 without gangs but those that memory requires: utilization 61.4 % against 66.0 % with: no "
            "gangs from now on");
  decision.tried = Splitting::planned;
  EXPECT_EQ(text_of(decision, true),
            "steps 18 to 27 with gangs: utilization 66.0 % against 61.4 % without: still no gangs");
  decision.taken = Splitting::planned;
  EXPECT_EQ(text_of(decision, false),
            "steps 18 to 27 with gangs: utilization 66.0 % against 61.4 % without: gangs again from now on");
  decision.gangs = 0;
  EXPECT_EQ(text_of(decision, false), "steps 18 to 27 with gangs where they end a step earlier: nowhere");
}

}  // namespace
}  // namespace hat
