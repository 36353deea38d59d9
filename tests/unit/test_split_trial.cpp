#include <gtest/gtest.h>

#include <algorithm>
#include <map>

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
  double seconds = 0;
  int64_t unsplit_steps = 0;
};

Result run(const Cluster& cluster, int64_t steps, int64_t pause_every = 0) {
  SplitTrial trial(kWorkers, cluster.staleness);
  std::map<int64_t, bool> is_split;
  int64_t opened = 0;
  double now_s = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (; opened < std::min(steps, step + cluster.staleness + 2); ++opened) {  // work is handed out ahead
      is_split[opened] = trial.may_split(opened);
    }
    const double shape = step % 2 == 0 ? 1 + cluster.spread : 1 - cluster.spread;
    now_s += shape * (is_split[step] ? cluster.split_s : cluster.unsplit_s);
    trial.committed(step, shape * cluster.work_s, shape * cluster.longest_s, is_split[step] ? cluster.gangs : 0, now_s);
    if (pause_every > 0 && (step + 1) % pause_every == 0) {
      trial.pause();
      now_s += 100;  // of validation
    }
  }
  return {.seconds = now_s, .unsplit_steps = trial.unsplit_steps()};
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

// Steps without gangs say nothing about them.
TEST(SplitTrialTest, TriesNothingWithoutGangs) {
  const Cluster cluster{.split_s = 1.5, .unsplit_s = 1.5, .longest_s = 0.5, .gangs = 0};
  EXPECT_EQ(run(cluster, 500).unsplit_steps, 0);
}

// Validation between two steps is no time of theirs; with a pause after every few steps nothing can be measured.
TEST(SplitTrialTest, LeavesPausesOut) {
  const Cluster slow_network{.split_s = 1.5, .unsplit_s = 1.1, .longest_s = 0.9};
  const Result result = run(slow_network, 2000, 50);
  EXPECT_LE(result.seconds - 40 * 100, 1.02 * 1.1 * 2000);
  EXPECT_EQ(run(slow_network, 500, 2).unsplit_steps, 0);
}

}  // namespace
}  // namespace hat
