#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "commands/recovery.hpp"
#include "hat/checkpoint/gradient_log.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/server/checkpoint_slices.hpp"
#include "hat/server/replay.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

namespace fs = std::filesystem;
using test::expect_input_error;
using test::TemporaryFolder;

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();
constexpr int64_t kSegmentSteps = 10;
constexpr int64_t kTokens = 40;  // of a step

/// Runs whose logs and checkpoints are made up, on two servers.
class RecoveryTest : public testing::Test {
 protected:
  fs::path run() const { return folder_.path() / "run"; }

  static LogAttempt attempt(int64_t number, int64_t first_step, const std::string& keys = "",
                            LogPayload payload = LogPayload::sum) {
    return {.number = number,
            .first_step = first_step,
            .servers = 2,
            .payload = payload,
            .deck = keys + "clip = \"none\"\n[model]\nwidth = 8\nheads = 2\nlayers = 1\n",
            .vocabulary = 11,
            .dataset_path = "/data.h5",
            .dataset_identity = "id",
            .tokenizer = "byte"};
  }

  /// A server's log, closed at the end of its scope.
  struct ServerLog {
    ServerLog(const fs::path& run, const LogAttempt& attempt, int server) : plan(plan_of(attempt)) {
      for (const int64_t index : plan.shards.parts_of_server[static_cast<size_t>(server)]) {
        parts.push_back(plan.shards.parts[static_cast<size_t>(index)]);
      }
      log = std::make_unique<GradientLog>(run, attempt, server, plan.layout, parts,
                                          LogConfig{.payload = attempt.payload}, kSegmentSteps);
    }
    ~ServerLog() { log->close(); }

    void add(int64_t step, const Part& part, int64_t tokens = kTokens) {
      log->add(LoggedUpdate{.step = step,
                            .epoch = step / 100,
                            .step_tokens = kTokens,
                            .block = part.block,
                            .begin = part.begin,
                            .count = part.count,
                            .version = step,
                            .tokens = tokens,
                            .scale = 0.5,
                            .learning_rate = 1e-3,
                            .sum_of_squares = static_cast<double>(step)},
               std::make_shared<std::vector<float>>(static_cast<size_t>(part.count), 0.25F));
    }
    /// Steps [first, end) of all parts.
    void add_steps(int64_t first, int64_t end) {
      for (int64_t step = first; step < end; ++step) {
        for (const Part& part : parts) add(step, part);
        log->completed_before(step + 1);
      }
    }

    RunPlan plan;
    std::vector<Part> parts;
    std::unique_ptr<GradientLog> log;
  };

  void log_steps(const LogAttempt& attempt, int64_t end) const { log_steps(attempt, end, end); }
  void log_steps(const LogAttempt& attempt, int64_t end_of_0, int64_t end_of_1) const {
    ServerLog(run(), attempt, 0).add_steps(attempt.first_step, end_of_0);
    ServerLog(run(), attempt, 1).add_steps(attempt.first_step, end_of_1);
  }

  LoggedStretch stretch(int64_t from, int64_t to = kEverything) const {
    GradientLogReader log(run());
    const GradientLogReader::Attempt* attempt = log.attempt_of(from);
    return complete_stretch(log, *attempt, plan_of(attempt->header), from, to);
  }

  int64_t reachable(int64_t from) const {
    GradientLogReader log(run());
    return reachable_step(log, from);
  }

  /// As a run writes it whose log is that of `attempt`.
  fs::path write_checkpoint(int64_t step) const {
    const LogAttempt first = attempt(1, 0);
    const RunPlan plan = plan_of(first);
    fs::path folder = checkpoint_folder(run(), step);
    for (int server = 0; server < 2; ++server) {
      ShardReplay shard(plan, server);
      shard.initialize();
      write_server_file(folder, server, step, shard.slices());
    }
    CheckpointState state = state_at_start(first, plan);
    state.step = step;
    state.tokens = step * kTokens;
    state.block_versions.assign(state.block_versions.size(), step);
    complete_checkpoint(folder, state, slices_of_servers(plan));
    return folder;
  }

  static void damage(const fs::path& checkpoint) {
    const fs::path file = checkpoint / "server-1.h5";
    test::truncate_file(file, fs::file_size(file) / 2);
  }

  TemporaryFolder folder_;
};

TEST_F(RecoveryTest, AStretchEndsWhereAServerHasLessThanTheWholeStep) {
  log_steps(attempt(1, 0), 25, 17);
  LoggedStretch whole = stretch(0);
  EXPECT_EQ(whole.end, 17);
  EXPECT_EQ(whole.tokens, 17 * kTokens);
  EXPECT_EQ(std::ssize(whole.norms), 17);
  const auto parts = static_cast<double>(plan_of(attempt(1, 0)).shards.parts.size());
  EXPECT_DOUBLE_EQ(whole.norms[9], std::sqrt(9 * parts));
  for (const int64_t updates : whole.block_updates) EXPECT_EQ(updates, 17);
  EXPECT_EQ(stretch(0, 5).end, 5);
  EXPECT_EQ(stretch(16).end, 17);
  EXPECT_EQ(stretch(17).end, 17);  // server 0 alone has it
}

TEST_F(RecoveryTest, AStepWithoutAPartOrWithFewerTokensIsNotComplete) {
  const LogAttempt first = attempt(1, 0);
  ServerLog(run(), first, 0).add_steps(0, 6);
  {
    ServerLog log(run(), first, 1);
    log.add_steps(0, 3);
    for (size_t part = 1; part < log.parts.size(); ++part) log.add(3, log.parts[part]);
  }
  EXPECT_EQ(stretch(0).end, 3);
  fs::remove_all(run());
  ServerLog(run(), first, 0).add_steps(0, 6);
  {
    ServerLog log(run(), first, 1);
    log.add_steps(0, 4);
    for (const Part& part : log.parts) log.add(4, part, kTokens - 1);
  }
  EXPECT_EQ(stretch(0).end, 4);
}

TEST_F(RecoveryTest, DamageOnOneServerEndsTheStretchThere) {
  log_steps(attempt(1, 0), 25);
  const fs::path file = log_segment(run(), 1, 1, 10);
  test::truncate_file(file, fs::file_size(file) / 2);
  EXPECT_EQ(stretch(0).end, 10);
  GradientLogReader log(run());
  EXPECT_EQ(log.problems().size(), 1U);
}

TEST_F(RecoveryTest, StepsOfANewerAttemptReplaceThoseOfAnOlderOne) {
  log_steps(attempt(1, 0), 9);
  log_steps(attempt(2, 6), 8);  // on the same number of servers or another: this is one run
  log_steps(attempt(3, 8, "seed = 9\n"), 12, 11);
  EXPECT_EQ(reachable(0), 11);
  EXPECT_EQ(reachable(7), 11);
  EXPECT_EQ(stretch(0).end, 6);
  EXPECT_EQ(stretch(6).end, 8);
  EXPECT_EQ(reachable(11), 11);
  fs::remove_all(run());
  log_steps(attempt(1, 0), 5);
  log_steps(attempt(2, 7), 9);  // steps 5 and 6 are nowhere
  EXPECT_EQ(reachable(0), 5);
  EXPECT_EQ(reachable(7), 9);
}

TEST_F(RecoveryTest, WithoutGradientsThereIsNothingToReplay) {
  log_steps(attempt(1, 0, "", LogPayload::metadata), 9);
  EXPECT_EQ(reachable(0), 0);
}

TEST_F(RecoveryTest, UnboundedRunsMayOnlyBeCutWhereNoStepIsCrossed) {
  const LogAttempt first = attempt(1, 0, "mode = \"async\"\nstaleness = \"unbounded\"\n");
  ServerLog(run(), first, 0).add_steps(0, 8);
  {
    ServerLog log(run(), first, 1);
    log.add_steps(0, 2);
    for (const int64_t step : {2, 4, 3, 4, 5, 6, 7}) {  // 4 comes before 3; two pushes make step 4
      for (const Part& part : log.parts) log.add(step, part, step == 4 ? kTokens / 2 : kTokens);
    }
  }
  const LoggedStretch whole = stretch(0);
  EXPECT_EQ(whole.end, 8);
  EXPECT_TRUE(whole.norms.empty());
  GradientLogReader log(run());
  const RunPlan plan = plan_of(first);
  const auto& attempt = *log.attempt_of(0);
  EXPECT_EQ(clean_cuts(log, attempt, plan, 0, 8), (std::vector<int64_t>{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(clean_cuts(log, attempt, plan, 5, 7), (std::vector<int64_t>{6}));
  const Part& last = plan.shards.parts[static_cast<size_t>(plan.shards.parts_of_server[1].back())];
  EXPECT_EQ(whole.block_updates[static_cast<size_t>(last.block)], 9);
}

TEST_F(RecoveryTest, StatesGrowByStretches) {
  log_steps(attempt(1, 0, "seed = 9\n"), 120);
  GradientLogReader log(run());
  const auto& attempt = *log.attempt_of(0);
  const RunPlan plan = plan_of(attempt.header);
  CheckpointState state = state_at_start(attempt.header, plan);
  extend(state, complete_stretch(log, attempt, plan, 0, 30), attempt.header);
  EXPECT_EQ(state.step, 30);
  EXPECT_EQ(std::ssize(state.recent_norms), 30);
  extend(state, complete_stretch(log, attempt, plan, 30, kEverything), attempt.header);
  EXPECT_EQ(state.step, 120);
  EXPECT_EQ(state.epoch, 1);
  EXPECT_EQ(state.tokens, 120 * kTokens);
  EXPECT_EQ(state.block_versions, std::vector<int64_t>(plan.layout.blocks.size(), 120));
  ASSERT_EQ(std::ssize(state.recent_norms), kNormsKept);
  EXPECT_DOUBLE_EQ(state.recent_norms.back(), std::sqrt(119.0 * static_cast<double>(plan.shards.parts.size())));
  const CheckpointState before = state;
  extend(state, complete_stretch(log, attempt, plan, 120, kEverything), attempt.header);  // nothing more
  EXPECT_EQ(state.recent_norms, before.recent_norms);
}

TEST_F(RecoveryTest, BuildsOnTheNewestCheckpoint) {
  write_checkpoint(10);
  write_checkpoint(20);
  log_steps(attempt(1, 0), 25, 24);
  const RecoveryPlan plan = plan_recovery(run());
  EXPECT_TRUE(plan.is_needed);
  EXPECT_EQ(plan.base, 20);
  EXPECT_TRUE(plan.damaged.empty());
  ASSERT_TRUE(plan.state);
  EXPECT_EQ(plan.state->step, 24);
  EXPECT_EQ(plan.state->tokens, 24 * kTokens);
  EXPECT_EQ(plan.source, checkpoint_folder(run(), 20));
}

TEST_F(RecoveryTest, NeedsNothingWhereTheNewestCheckpointIsTheEnd) {
  write_checkpoint(10);
  log_steps(attempt(1, 0), 10);
  const RecoveryPlan plan = plan_recovery(run());
  EXPECT_FALSE(plan.is_needed);
  EXPECT_EQ(plan.state->step, 10);
  fs::remove_all(run() / "log");
  EXPECT_FALSE(plan_recovery(run()).is_needed);
}

TEST_F(RecoveryTest, DamagedCheckpointsAreReplacedWhereTheLogReachesAsFar) {
  write_checkpoint(10);
  damage(write_checkpoint(15));
  damage(write_checkpoint(20));
  log_steps(attempt(1, 0), 20);
  RecoveryPlan plan = plan_recovery(run());
  EXPECT_TRUE(plan.is_needed);
  EXPECT_EQ(plan.base, 10);
  EXPECT_EQ(plan.damaged, (std::vector<int64_t>{20, 15}));
  EXPECT_EQ(plan.state->step, 20);

  fs::remove_all(run() / "log");  // one step short
  log_steps(attempt(1, 0), 20, 19);
  expect_input_error([&] { plan_recovery(run()); },
                     {"step-00000020", "server-1.h5", "older checkpoints (step-00000010", "move step-00000020 away"});
  fs::remove_all(run() / "log");
  expect_input_error([&] { plan_recovery(run()); }, {"step-00000020", "server-1.h5"});
  EXPECT_TRUE(fs::exists(checkpoint_folder(run(), 20) / "complete"));  // nothing was touched
}

TEST_F(RecoveryTest, BeginsWithTheStartValuesWhereThereIsNoCheckpoint) {
  log_steps(attempt(1, 0), 7);
  RecoveryPlan plan = plan_recovery(run());
  EXPECT_TRUE(plan.is_needed);
  EXPECT_FALSE(plan.base);
  EXPECT_EQ(plan.state->step, 7);
  EXPECT_EQ(plan.state->dataset_identity, "id");
  EXPECT_EQ(plan.source, run() / "log");

  fs::remove_all(run());  // killed before its first step, and behind it with a log that brings none back
  log_steps(attempt(1, 0), 0);
  plan = plan_recovery(run());
  EXPECT_TRUE(plan.is_needed);
  EXPECT_EQ(plan.state->step, 0);
  std::ofstream(run() / "metrics.jsonl") << R"({"kind":"step","step":1})" << '\n';
  EXPECT_FALSE(plan_recovery(run()).state);
}

}  // namespace
}  // namespace hat
