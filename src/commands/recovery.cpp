#include "commands/recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "commands/all_ranks.hpp"
#include "commands/run_folder.hpp"
#include "hat/checkpoint/checkpoint_survey.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/io/durable.hpp"
#include "hat/server/checkpoint_slices.hpp"
#include "hat/server/replay.hpp"
#include "hat/server/time_limit.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

/// A stretch of steps that one attempt of a run logged, to be replayed on top of a checkpoint.
struct Stage {
  int64_t from = 0;
  int64_t to = 0;
  bool has_checkpoint = false;  ///< of `from`; otherwise from the start values
  bool is_needed = false;
  bool is_in_order = true;         ///< updates stand in the order of their steps
  std::vector<int64_t> cuts = {};  ///< otherwise: steps that all earlier ones' updates stand before

  template <class F>
  void fields(F& f) {
    f(from), f(to), f(has_checkpoint), f(is_needed), f(is_in_order), f(cuts);
  }

  /// Whether the newest checkpoint is what this stage would make.
  bool is_empty() const { return has_checkpoint && to == from; }
  /// Where a piece of about so many steps ends.
  int64_t end_of_piece(int64_t begin, int64_t steps) const {
    if (is_in_order) return std::min(to, begin + steps);
    const auto cut = std::ranges::lower_bound(cuts, begin + steps);
    return cut == cuts.end() ? to : std::min(to, *cut);
  }
};

/// What is wrong with a checkpoint; empty: nothing.
std::string first_problem(const fs::path& checkpoint) {
  try {
    const CheckpointSurvey survey = survey_checkpoint(checkpoint);
    return survey.problems.empty() ? "" : survey.problems.front();  // a whole line that begins with the file
  } catch (const InputError& error) {
    return error.what();
  }
}

void set_aside(const fs::path& checkpoint) {
  fs::path kept = checkpoint.string() + ".damaged";
  for (int i = 2; fs::exists(kept); ++i) kept = fmt::format("{}.damaged-{}", checkpoint.string(), i);
  rename_durably(checkpoint, kept);
  fmt::print(stderr, "hat: {}: is damaged, is kept as {}; the run is rebuilt from what is before it and the log\n",
             checkpoint.string(), kept.filename().string());
}

/// A run that was killed before its first step is committed gets a checkpoint of its start values.
bool begins_anew(const fs::path& run, const GradientLogReader::Attempt& first) {
  return first.header.first_step == 0 && !has_logged_steps(run);
}

/// Takes the state of a run as far as its log goes, through all attempts.
void extend_by_log(CheckpointState& state, GradientLogReader& log) {
  while (const GradientLogReader::Attempt* attempt = log.attempt_of(state.step)) {
    const LoggedStretch stretch =
        complete_stretch(log, *attempt, plan_of(attempt->header), state.step, log.end_of(*attempt));
    if (stretch.end == state.step) return;
    extend(state, stretch, attempt->header);
  }
}

/// What is to be done next, from the checkpoint of step `base`, or from the start values.
Stage next_stage(const fs::path& run, GradientLogReader& log, const std::optional<int64_t>& base) {
  Stage stage{.from = base.value_or(0), .to = base.value_or(0), .has_checkpoint = base.has_value()};
  const GradientLogReader::Attempt* attempt = log.attempt_of(stage.from);
  if (attempt == nullptr) return stage;
  const RunPlan plan = plan_of(attempt->header);
  stage.to = complete_stretch(log, *attempt, plan, stage.from, log.end_of(*attempt)).end;
  stage.is_needed = stage.to > stage.from || (!base && begins_anew(run, *attempt));
  stage.is_in_order = !plan.unbounded();
  if (plan.unbounded()) stage.cuts = clean_cuts(log, *attempt, plan, stage.from, stage.to);
  return stage;
}

/// Of one rank, when it is through with a piece of a stage.
struct PieceReport {
  int64_t reached = 0;  ///< less than the piece's end: the records behind are damaged
  double seconds = 0;
  int64_t signal = 0;
  bool is_late = false;
  template <class F>
  void fields(F& f) {
    f(reached), f(seconds), f(signal), f(is_late);
  }
};

/// Replays stages: the servers of the log are dealt out to the ranks, which rebuild their shards piece by piece.
class Replay {
 public:
  Replay(const Communicator& world, const RunSetup& setup)
      : world_(world), setup_(setup), run_(setup.plan.deck.output), time_limit_(setup.plan, now_s()) {}

  /// Replays a stage and completes its checkpoint. Collective.
  RecoveryEnd replay(GradientLogReader& log, Stage stage) {
    const double begin_s = now_s();
    log_ = &log;
    attempt_ = log.attempt_of(stage.from);
    const int64_t planned = stage.to;
    RecoveryEnd end = rebuild(stage);
    while (end.code == ExitCode::success && end.step < stage.to && !end.stop_reason) {
      stage.to = end.step;  // records behind it are damaged: those before count
      end = rebuild(stage);
    }
    if (end.code == ExitCode::success && end.step < planned && !end.stop_reason) {
      end.code = tell_loss(stage, end.step, planned);
    }
    if (end.code != ExitCode::success || (stage.has_checkpoint && end.step == stage.from)) return end;
    end.code = write_checkpoint(stage, end.step);
    if (end.code != ExitCode::success || world_.rank() != 0) return end;
    if (end.step == 0) {
      fmt::print("the run had not committed a step: it begins anew\n");
    } else {
      fmt::print("recovered steps {} to {}{} from the gradient log in {:.1f} s\n", stage.from + 1, end.step,
                 end.stop_reason ? fmt::format(" of {}", planned) : "", now_s() - begin_s);
    }
    std::fflush(stdout);
    return end;
  }

 private:
  /// Committed steps that nothing can bring back, since their records are damaged. Refused where that is all of them.
  ExitCode tell_loss(const Stage& stage, int64_t reached, int64_t planned) {
    return on_all_ranks(world_, [&] {
      if (world_.rank() != 0) return;
      const std::string steps = fmt::format(
          "steps {} to {} were committed, but what the gradient log has of them is damaged", reached + 1, planned);
      if (reached == 0 && !stage.has_checkpoint) {
        throw InputError(run_.string(), "resume",
                         steps + ", and no checkpoint lies before them: start a new run in another folder");
      }
      fmt::print(stderr, "hat: {}: {}; the run goes on at step {}\n", run_.string(), steps, reached);
    });
  }

  RecoveryEnd rebuild(const Stage& stage) {
    const ExitCode code = restore(stage);
    return code == ExitCode::success ? replay_pieces(stage) : RecoveryEnd{.code = code, .step = stage.from};
  }

  /// The shards of this rank's servers at the stage's beginning.
  ExitCode restore(const Stage& stage) {
    const fs::path folder = checkpoint_folder(run_, stage.from);
    setup_.enter("reading the checkpoint to recover from", stage.has_checkpoint ? bytes_of_files(folder) : 0);
    return on_all_ranks(world_, [&] {
      if (attempt_ == nullptr) throw Error("the gradient log is not seen alike on all ranks");
      shards_.clear();
      plan_ = plan_of(attempt_->header);
      if (stage.is_empty()) return;
      std::optional<CheckpointReader> checkpoint;
      if (stage.has_checkpoint) checkpoint.emplace(folder);
      for (int server = world_.rank(); server < plan_.roles.servers(); server += world_.size()) {
        ShardReplay& shard = shards_.emplace_back(plan_, server);
        if (checkpoint) {
          shard.restore(tensors_of(*checkpoint), checkpoint->state().block_versions);
        } else {
          shard.initialize();
        }
      }
    });
  }

  /// Until all shards are at the stage's end, or at a step that the run is to stop at, or one behind which records are
  /// damaged (then the shards are of no use). Pieces take about half a second: so often the ranks agree whether to go
  /// on.
  RecoveryEnd replay_pieces(const Stage& stage) {
    constexpr double kShort_s = 0.25;
    constexpr double kLong_s = 1;
    RecoveryEnd end{.step = stage.from};
    time_limit_.training_goes_on(now_s());
    int64_t steps = 1;
    while (end.step < stage.to && !end.stop_reason) {
      const int64_t piece_end = stage.end_of_piece(end.step, steps);
      setup_.enter("replaying the gradient log", (piece_end - end.step) * bytes_of_step());
      PieceReport own{.reached = piece_end};
      end.code = on_all_ranks(world_, [&] { own = replay_piece(end.step, piece_end); });
      if (end.code != ExitCode::success) return end;
      PieceReport all = own;
      std::string reason;
      int rank = 0;
      for (const std::string& text : world_.all_gather(packed(own))) {
        const auto report = unpacked<PieceReport>(text);
        all.reached = std::min(all.reached, report.reached);
        all.seconds = std::max(all.seconds, report.seconds);
        if (reason.empty() && report.signal != 0) {
          reason = fmt::format("{} on rank {}", signal_name(static_cast<int>(report.signal)), rank);
        }
        if (reason.empty() && report.is_late) reason = fmt::format("time limit ({})", setup_.plan.deadline.source);
        ++rank;
      }
      end.step = all.reached;
      if (all.reached < piece_end) return end;
      if (!reason.empty() && end.step < stage.to) end.stop_reason = reason;
      if (all.seconds < kShort_s) {
        steps *= 2;
      } else if (all.seconds > kLong_s) {
        steps = std::max<int64_t>(1, steps / 2);
      }
    }
    return end;
  }

  /// About what the log has of one step: the sums, or the pushes of some workers. So much is a checkpoint, too.
  int64_t bytes_of_step() const {
    constexpr int64_t kValues = 4;
    return kValues * static_cast<int64_t>(sizeof(float)) * plan_.layout.size();
  }

  PieceReport replay_piece(int64_t begin, int64_t end) {
    PieceReport report{.reached = end};
    const double begin_s = now_s();
    for (ShardReplay& shard : shards_) {
      std::string problem;
      report.reached = std::min(report.reached, shard.apply(*log_, *attempt_, begin, end, problem));
      if (!problem.empty()) fmt::print(stderr, "hat: {}\n", problem);
    }
    report.seconds = now_s() - begin_s;
    report.signal = stop_signal();
    if (world_.rank() != 0) return report;  // which knows the deadline
    time_limit_.step_done(now_s());
    constexpr int64_t kNextPiece = 2;  // as long as two of those seen
    report.is_late = time_limit_.is_set() && time_limit_.is_near(kNextPiece, now_s());
    return report;
  }

  ExitCode write_checkpoint(const Stage& stage, int64_t step) {
    const double begin_s = now_s();
    const fs::path folder = checkpoint_folder(run_, step);
    const fs::path before = checkpoint_folder(run_, stage.from);
    setup_.enter("writing the checkpoint of what was recovered",
                 stage.has_checkpoint ? 2 * bytes_of_files(before) : bytes_of_step());
    ExitCode code = on_all_ranks(world_, [&] {
      int server = world_.rank();
      for (ShardReplay& shard : shards_) {
        write_server_file(folder, server, step, shard.slices());
        server += world_.size();
      }
    });
    if (code != ExitCode::success) return code;
    code = on_all_ranks(world_, [&] {
      if (world_.rank() != 0) return;
      CheckpointState state =
          stage.has_checkpoint ? CheckpointReader(before).state() : state_at_start(attempt_->header, plan_);
      extend(state, complete_stretch(*log_, *attempt_, plan_, stage.from, step), attempt_->header);
      complete_checkpoint(folder, state, slices_of_servers(plan_));
      rotate_checkpoints(run_, plan_.deck.checkpoint.keep);
    });
    time_limit_.checkpoint_took(now_s() - begin_s);
    return code;
  }

  const Communicator& world_;
  const RunSetup& setup_;
  fs::path run_;
  TimeLimit time_limit_;  // of rank 0
  GradientLogReader* log_ = nullptr;
  const GradientLogReader::Attempt* attempt_ = nullptr;
  RunPlan plan_;                     // of the attempt
  std::vector<ShardReplay> shards_;  // refer to it
};

}  // namespace

RecoveryPlan plan_recovery(const fs::path& run) {
  RecoveryPlan plan;
  std::vector<int64_t> steps = complete_checkpoints(run);
  if (fs::exists(run / "log")) plan.log.emplace(run, steps.empty() ? 0 : steps.front());
  std::string problem;
  for (; !steps.empty(); steps.pop_back()) {
    const std::string found = first_problem(checkpoint_folder(run, steps.back()));
    if (found.empty()) break;
    if (plan.damaged.empty()) problem = found;
    plan.damaged.push_back(steps.back());
  }
  if (!steps.empty()) {
    plan.base = steps.back();
    plan.source = checkpoint_folder(run, *plan.base);
    plan.state = CheckpointReader(plan.source).state();
    if (plan.log) extend_by_log(*plan.state, *plan.log);
  } else if (const auto* first = plan.log ? plan.log->attempt_of(0) : nullptr) {
    CheckpointState state = state_at_start(first->header, plan_of(first->header));
    extend_by_log(state, *plan.log);
    plan.source = run / "log";
    if (state.step > 0 || begins_anew(run, *first)) plan.state = std::move(state);
  }
  const int64_t reached = plan.state ? plan.state->step : -1;
  if (!plan.damaged.empty() && reached < plan.damaged.front()) {
    const fs::path newest = checkpoint_folder(run, plan.damaged.front());
    throw InputError(newest.string(), "resume", problem + way_around(newest));
  }
  plan.is_needed = plan.state && (!plan.base || reached > *plan.base || !plan.damaged.empty());
  return plan;
}

RecoveryEnd recover_run(const Communicator& world, const RunSetup& setup, RecoveryPlan found) {
  const fs::path run = setup.plan.deck.output;
  RecoveryEnd end{.step = found.base.value_or(0)};
  end.code = on_all_ranks(world, [&] {
    for (const int64_t step : found.damaged) set_aside(checkpoint_folder(run, step));
  });
  if (end.code != ExitCode::success) return end;
  Replay replay(world, setup);
  std::optional<int64_t> base = found.base;
  int64_t before = -1;
  std::set<std::string> said;
  while (!end.stop_reason) {
    Stage stage;
    end.code = on_all_ranks(world, [&] {
      if (world.rank() != 0 || !found.log) return;
      stage = next_stage(run, *found.log, base);
      for (const std::string& problem : found.log->problems()) {
        if (said.insert(problem).second) fmt::print(stderr, "hat: {}\n", problem);
      }
    });
    if (end.code != ExitCode::success) return end;
    stage = unpacked<Stage>(world.broadcast(packed(stage), 0));
    end.step = stage.from;
    if (!stage.is_needed || stage.from <= before) break;  // the same again: its records are damaged
    before = stage.from;
    end.code = on_all_ranks(world, [&] {
      if (!found.log) found.log.emplace(run, stage.from);
    });
    if (end.code == ExitCode::success) end = replay.replay(*found.log, stage);
    if (end.code != ExitCode::success) return end;
    base = end.step;
  }
  end.code = on_all_ranks(world, [&] { found.log.reset(); });  // all, since readers hold locks
  if (end.code != ExitCode::success) return end;
  end.code = on_all_ranks(world, [&] {
    if (world.rank() == 0) clear_log_writers(run);
  });
  return end;
}

}  // namespace hat
