#include "commands/recovery.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "commands/all_ranks.hpp"
#include "commands/run_folder.hpp"
#include "hat/checkpoint/checkpoint.hpp"
#include "hat/checkpoint/checkpoint_survey.hpp"
#include "hat/core/clock.hpp"
#include "hat/io/durable.hpp"
#include "hat/server/checkpoint_slices.hpp"
#include "hat/server/replay.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

/// A stretch of steps that one attempt of a run logged, to be replayed on top of a checkpoint.
struct Stage {
  int64_t from = 0;
  int64_t to = 0;
  bool has_checkpoint = false;  ///< of `from`; otherwise from the start values
  bool is_needed = false;

  std::string text() const { return fmt::format("{} {} {} {}", from, to, has_checkpoint ? 1 : 0, is_needed ? 1 : 0); }
  static Stage of(const std::string& text) {
    Stage stage;
    std::istringstream(text) >> stage.from >> stage.to >> stage.has_checkpoint >> stage.is_needed;
    return stage;
  }
};

bool is_undamaged(const fs::path& checkpoint) {
  try {
    return survey_checkpoint(checkpoint).problems.empty();
  } catch (const InputError&) {
    return false;
  }
}

void set_aside(const fs::path& checkpoint) {
  fs::path kept = checkpoint.string() + ".damaged";
  for (int i = 2; fs::exists(kept); ++i) kept = fmt::format("{}.damaged-{}", checkpoint.string(), i);
  rename_durably(checkpoint, kept);
  fmt::print(stderr, "hat: {}: is damaged, is kept as {}; the run is rebuilt from what is before it and the log\n",
             checkpoint.string(), kept.filename().string());
}

struct Base {
  std::optional<int64_t> step = {};  ///< none: the start values
  bool is_sound = true;  ///< a damaged one that the log cannot replace is refused by whoever continues the run
};

/// The checkpoint to build on: the newest sound one.
Base choose_base(const fs::path& run, GradientLogReader& log) {
  std::vector<int64_t> steps = complete_checkpoints(run);
  if (steps.empty()) return {};
  const int64_t newest = steps.back();
  if (is_undamaged(checkpoint_folder(run, newest))) return {.step = newest};
  std::vector<int64_t> damaged{newest};
  for (steps.pop_back();; steps.pop_back()) {
    const int64_t base = steps.empty() ? 0 : steps.back();
    if (!steps.empty() && !is_undamaged(checkpoint_folder(run, base))) {
      damaged.push_back(base);
      continue;
    }
    if (reachable_step(log, base) < newest) return {.step = newest, .is_sound = false};
    for (const int64_t step : damaged) set_aside(checkpoint_folder(run, step));
    return {.step = steps.empty() ? std::nullopt : std::optional(base)};
  }
}

/// What rank 0 finds that is to be done next. A run that was killed before its first step, too, gets a checkpoint.
Stage next_stage(const fs::path& run, GradientLogReader& log) {
  const Base base = choose_base(run, log);
  Stage stage{.from = base.step.value_or(0), .to = base.step.value_or(0), .has_checkpoint = base.step.has_value()};
  const GradientLogReader::Attempt* attempt = log.attempt_of(stage.from);
  if (attempt == nullptr || !base.is_sound) return stage;
  stage.to = complete_stretch(log, *attempt, plan_of(attempt->header), stage.from, log.end_of(*attempt)).end;
  stage.is_needed = stage.to > stage.from || (!base.step && attempt->header.first_step == 0 && !has_logged_steps(run));
  return stage;
}

/// Rebuilds the servers that are this rank's and writes their files. Returns the step that all of them reached, less
/// than `stage.to` where records turned out to be damaged; then nothing of it counts.
int64_t rebuild_servers(const Communicator& world, const fs::path& run, GradientLogReader& log,
                        const GradientLogReader::Attempt& attempt, const RunPlan& plan, const Stage& stage) {
  int64_t reached = stage.to;
  if (stage.has_checkpoint && stage.to == stage.from) return reached;
  for (int server = world.rank(); server < plan.roles.servers(); server += world.size()) {
    ShardReplay replay(plan, server);
    if (stage.has_checkpoint) {
      const CheckpointReader checkpoint(checkpoint_folder(run, stage.from));
      replay.restore(tensors_of(checkpoint), checkpoint.state().block_versions);
    } else {
      replay.initialize();
    }
    std::string problem;
    reached = std::min(reached, replay.apply(log, attempt, stage.from, stage.to, problem));
    if (!problem.empty()) fmt::print(stderr, "hat: {}\n", problem);
    if (reached < stage.to) return reached;
    write_server_file(checkpoint_folder(run, stage.to), server, stage.to, replay.slices());
  }
  return reached;
}

/// Replays one stage and completes its checkpoint. Collective.
ExitCode replay_stage(const Communicator& world, const fs::path& run, GradientLogReader& log, Stage stage) {
  const double begin_s = now_s();
  const GradientLogReader::Attempt* attempt = log.attempt_of(stage.from);
  ExitCode code = ExitCode::success;
  RunPlan plan;
  while (true) {
    int64_t reached = stage.from;
    code = on_all_ranks(world, [&] {
      if (attempt == nullptr) throw Error("the gradient log is not seen alike on all ranks");
      plan = plan_of(attempt->header);
      reached = rebuild_servers(world, run, log, *attempt, plan, stage);
    });
    if (code != ExitCode::success) return code;
    reached = -world.all_reduce_max(-reached);
    if (reached == stage.to) break;
    stage.to = reached;
  }
  return on_all_ranks(world, [&] {
    if (world.rank() != 0 || (stage.has_checkpoint && stage.to == stage.from)) return;
    const fs::path folder = checkpoint_folder(run, stage.to);
    if (fs::exists(folder)) set_incomplete_aside(run);
    CheckpointState state = stage.has_checkpoint ? CheckpointReader(checkpoint_folder(run, stage.from)).state()
                                                 : state_at_start(attempt->header, plan);
    extend(state, complete_stretch(log, *attempt, plan, stage.from, stage.to), attempt->header);
    complete_checkpoint(folder, state, slices_of_servers(plan));
    rotate_checkpoints(run, plan.deck.checkpoint.keep);
    if (stage.to == 0) {
      fmt::print("the run had not committed a step: it begins anew\n");
    } else {
      fmt::print("recovered steps {} to {} from the gradient log in {:.1f} s\n", stage.from + 1, stage.to,
                 now_s() - begin_s);
    }
    std::fflush(stdout);
  });
}

}  // namespace

ExitCode recover_run(const Communicator& world, const fs::path& run) {
  std::unique_ptr<RunFolderLock> lock;
  bool has_log = false;
  ExitCode code = on_all_ranks(world, [&] {
    if (world.rank() != 0 || !fs::exists(run / "log")) return;
    lock = std::make_unique<RunFolderLock>(run);
    has_log = true;
  });
  if (code != ExitCode::success || world.all_reduce_max(has_log ? 1 : 0) == 0) return code;
  int64_t before = -1;
  std::set<std::string> said;
  while (true) {
    std::optional<GradientLogReader> log;
    Stage stage;
    code = on_all_ranks(world, [&] {
      log.emplace(run);
      if (world.rank() != 0) return;
      stage = next_stage(run, *log);
      for (const std::string& problem : log->problems()) {
        if (said.insert(problem).second) fmt::print(stderr, "hat: {}\n", problem);
      }
    });
    if (code != ExitCode::success) return code;
    stage = Stage::of(world.broadcast(stage.text(), 0));
    if (!stage.is_needed || stage.from <= before) break;  // the same again: its records are damaged
    before = stage.from;
    code = replay_stage(world, run, *log, stage);
    if (code != ExitCode::success) return code;
  }
  return on_all_ranks(world, [&] {
    if (world.rank() == 0) clear_log_writers(run);
  });
}

}  // namespace hat
