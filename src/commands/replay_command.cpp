#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hat/commands/commands.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/option_set.hpp"
#include "hat/core/clock.hpp"
#include "hat/server/checkpoint_slices.hpp"
#include "hat/server/recomputation.hpp"
#include "hat/server/replay.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

struct ReplayOptions {
  std::string run;
  std::string data;
  int64_t from = -1;
  int64_t until = -1;
  std::string compare;
  std::string output;
  bool json = false;
};

/// A checkpoint held against what the log gives.
struct Comparison {
  int64_t step = 0;
  std::string path;
  int64_t values = 0;
  int64_t different = 0;
  std::string first_different;  ///< tensor
};

/// All servers of the run as they are rebuilt, step after step.
class RunReplay {
 public:
  /// `data`: in place of the dataset that the log names; empty: that one.
  RunReplay(fs::path run, std::string data, std::optional<int64_t> base)
      : run_(std::move(run)), data_(std::move(data)), log_(run_), base_(base) {
    step_ = base_.value_or(0);
  }

  GradientLogReader& log() { return log_; }
  int64_t step() const { return step_; }
  int64_t updates() const { return total(updates_, &ShardReplay::updates_applied); }
  int64_t versions_checked() const { return total(versions_checked_, &ShardReplay::versions_checked); }
  double seconds() const { return seconds_; }

  /// Throws InputError where the log does not reach `to`.
  void advance(int64_t to) {
    while (step_ < to) {
      enter_attempt();
      const int64_t end = std::min(to, log_.end_of(*attempt_));
      const double begin_s = now_s();
      if (recomputation_) {
        recomputation_->advance(end);
      } else {
        apply_logged(end);
      }
      seconds_ += now_s() - begin_s;
      extend(state_, complete_stretch(log_, *attempt_, *plan_, step_, end, RebuiltFrom::computations),
             attempt_->header);
      step_ = end;
    }
  }

  Comparison compare(const fs::path& path) {
    if (shards_.empty()) enter_attempt();
    const CheckpointReader checkpoint(path);
    Comparison result{.step = checkpoint.state().step, .path = checkpoint.folder().string(), .first_different = {}};
    std::vector<float> values;
    for (const TensorSlice& slice : all_slices()) {
      const auto count = static_cast<size_t>(slice.rows * slice.columns);
      values.resize(count);
      checkpoint.read(slice.path, slice.first_row, slice.rows, slice.columns, values.data());
      result.values += static_cast<int64_t>(count);
      for (size_t i = 0; i < count; ++i) {
        if (std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(slice.data[i])) continue;
        if (result.different++ == 0) result.first_different = slice.path;
      }
    }
    return result;
  }

  void write(const fs::path& output) {
    if (shards_.empty()) enter_attempt();
    for (size_t server = 0; server < shards_.size(); ++server) {
      write_server_file(output, static_cast<int64_t>(server), step_, shards_[server].slices());
    }
    complete_checkpoint(output, state_, slices_of_servers(*plan_));
  }

 private:
  int64_t total(int64_t of_earlier_attempts, int64_t (ShardReplay::*count)() const) const {
    for (const ShardReplay& shard : shards_) of_earlier_attempts += (shard.*count)();
    return of_earlier_attempts;
  }

  void apply_logged(int64_t end) {
    for (ShardReplay& shard : shards_) {
      std::string problem;
      const int64_t reached = shard.apply(log_, *attempt_, step_, end, problem);
      if (!problem.empty()) throw InputError(problem);
      if (reached < end) throw InputError(run_.string(), "log", fmt::format("ends at step {}", reached));
    }
  }

  /// Servers of the attempt that has the next step, as those before have left off.
  void enter_attempt() {
    const GradientLogReader::Attempt* next = log_.attempt_of(step_);
    if (next == nullptr) throw InputError(run_.string(), "log", fmt::format("has no records of step {}", step_));
    if (next->header.payload == LogPayload::none) {
      throw InputError(run_.string(), "log",
                       fmt::format("of attempt {} holds nothing (log.payload was 'none'): there is nothing to replay "
                                   "from step {} on",
                                   next->header.number, step_));
    }
    if (next == attempt_) return;
    attempt_ = next;
    recomputation_.reset();
    auto plan = std::make_unique<RunPlan>(plan_of(next->header));
    std::vector<ShardReplay> shards;
    shards.reserve(static_cast<size_t>(plan->roles.servers()));
    for (int server = 0; server < plan->roles.servers(); ++server) shards.emplace_back(*plan, server);
    if (!shards_.empty()) {  // of the attempt before, perhaps on another number of servers
      const TensorSource saved = tensors_of(all_slices());
      for (ShardReplay& shard : shards) shard.restore(saved, state_.block_versions);
    } else if (base_) {
      const CheckpointReader checkpoint(checkpoint_folder(run_, *base_));
      state_ = checkpoint.state();
      for (ShardReplay& shard : shards) shard.restore(tensors_of(checkpoint), state_.block_versions);
    } else {
      state_ = state_at_start(next->header, *plan);
      for (ShardReplay& shard : shards) shard.initialize();
    }
    for (const ShardReplay& shard : shards_) {
      updates_ += shard.updates_applied();
      versions_checked_ += shard.versions_checked();
    }
    shards_ = std::move(shards);
    plan_ = std::move(plan);
    if (next->header.payload != LogPayload::metadata) return;
    dataset_.emplace(data_.empty() ? fs::path(next->header.dataset_path) : fs::path(data_));
    recomputation_ = std::make_unique<Recomputation>(*plan_, log_, *attempt_, *dataset_, shards_, step_);
  }

  std::vector<TensorSlice> all_slices() {
    std::vector<TensorSlice> slices;
    for (ShardReplay& shard : shards_) {
      const std::vector<TensorSlice> own = shard.slices();
      slices.insert(slices.end(), own.begin(), own.end());
    }
    return slices;
  }

  fs::path run_;
  std::string data_;
  GradientLogReader log_;
  std::optional<int64_t> base_;
  int64_t step_ = 0;
  const GradientLogReader::Attempt* attempt_ = nullptr;
  std::unique_ptr<RunPlan> plan_;
  std::vector<ShardReplay> shards_;
  std::optional<Dataset> dataset_;
  std::unique_ptr<Recomputation> recomputation_;  // of an attempt without gradients
  CheckpointState state_;
  int64_t updates_ = 0;  // of earlier attempts; likewise the next
  int64_t versions_checked_ = 0;
  double seconds_ = 0;
};

/// The checkpoint to begin at: the one asked for, otherwise the oldest one that records follow (or the start values).
std::optional<int64_t> first_base(const fs::path& run, GradientLogReader& log, int64_t from) {
  const std::vector<int64_t> checkpoints = complete_checkpoints(run);
  std::vector<std::optional<int64_t>> candidates;
  if (from <= 0) candidates.emplace_back(std::nullopt);
  for (const int64_t step : checkpoints) {
    if (from < 0 || step == from) candidates.emplace_back(step);
  }
  for (const std::optional<int64_t>& base : candidates) {
    if (reachable_step(log, base.value_or(0), RebuiltFrom::computations) > base.value_or(0)) return base;
  }
  if (from >= 0) {
    throw InputError(run.string(), "log", fmt::format("no checkpoint of step {} with records behind it", from));
  }
  for (const std::string& problem : log.problems()) fmt::print(stderr, "hat: {}\n", problem);
  throw InputError(run.string(), "log",
                   log.attempts().empty() ? "is missing or unreadable: there is nothing to replay"
                                          : "holds no step that is complete on all servers and follows a checkpoint: "
                                            "train with log.keep = all, and not with log.payload = none, and see what "
                                            "'hat inspect' says of its files");
}

void say(const Comparison& comparison) {
  if (comparison.different == 0) {
    fmt::print("step {}: all {} values of {} are the same to the bit\n", comparison.step, comparison.values,
               comparison.path);
  } else {
    fmt::print("step {}: {} of {} values differ from {}, the first in {}\n", comparison.step, comparison.different,
               comparison.values, comparison.path, comparison.first_different);
  }
}

nlohmann::json json_of(const Comparison& comparison) {
  return {{"step", comparison.step},
          {"path", comparison.path},
          {"values", comparison.values},
          {"different", comparison.different}};
}

ExitCode replay(OptionSet& keys, const ReplayOptions& options) {
  keys.load(std::nullopt);
  const fs::path run = options.run;
  if (!options.output.empty() && fs::exists(options.output)) {
    throw InputError(options.output, "--output", "exists already, nothing is overwritten");
  }
  if (!fs::is_directory(run)) throw InputError(run.string(), "", "is no run folder");
  std::optional<int64_t> base;
  int64_t reachable = 0;
  {
    GradientLogReader log(run);
    base = first_base(run, log, options.from);
    reachable = reachable_step(log, base.value_or(0), RebuiltFrom::computations);
    for (const std::string& problem : log.problems()) fmt::print(stderr, "hat: {}\n", problem);
  }
  const int64_t first = base.value_or(0);
  int64_t until = options.until < 0 ? reachable : options.until;
  std::optional<int64_t> compared;
  if (!options.compare.empty()) {
    compared = CheckpointReader(options.compare).state().step;
    if (options.until < 0) until = *compared;
    if (*compared != until) {
      throw InputError("command line", "--compare",
                       fmt::format("is a checkpoint of step {}, not of --until {}", *compared, until));
    }
  }
  if (until < first || until > reachable) {
    throw InputError("command line", "--until",
                     fmt::format("step {} cannot be rebuilt; the log of {} gives steps {} to {}", until, run.string(),
                                 first, reachable));
  }

  RunReplay replayed(run, options.data, base);
  std::vector<Comparison> comparisons;
  std::set<int64_t> stops;
  for (const int64_t step : complete_checkpoints(run)) {
    if (step > first && step <= until) stops.insert(step);
  }
  for (const int64_t step : stops) {
    replayed.advance(step);
    comparisons.push_back(replayed.compare(checkpoint_folder(run, step)));
    if (!options.json) say(comparisons.back());
  }
  replayed.advance(until);
  if (compared) {
    comparisons.push_back(replayed.compare(options.compare));
    if (!options.json) say(comparisons.back());
  }
  if (!options.output.empty()) replayed.write(options.output);
  const bool equal = std::ranges::all_of(comparisons, [](const Comparison& c) { return c.different == 0; });
  if (options.json) {
    nlohmann::json data{{"from", first},
                        {"until", until},
                        {"updates", replayed.updates()},
                        {"versions_checked", replayed.versions_checked()},
                        {"seconds", replayed.seconds()},
                        {"comparisons", nlohmann::json::array()}};
    for (const Comparison& comparison : comparisons) data["comparisons"].push_back(json_of(comparison));
    fmt::print("{}\n", data.dump(2));
  } else {
    const std::string written = options.output.empty() ? "" : "; written to " + options.output;
    if (until == first) {
      fmt::print("nothing to replay: step {} is where it begins{}\n", first, written);
    } else {
      fmt::print(
          "replayed steps {} to {}: {} updates in {:.2f} s, {} versions with the checksum they were published with{}\n",
          first + 1, until, replayed.updates(), replayed.seconds(), replayed.versions_checked(), written);
    }
  }
  return equal ? ExitCode::success : ExitCode::failure;
}

}  // namespace

CommandBody add_replay(CLI::App& app) {
  CLI::App* command = app.add_subcommand("replay", "Rebuild the parameters of a run at any step from its gradient log");
  command->footer(
      "Example: hat replay hat-run --until 1234 --output step-1234\n"
      "Begins at the oldest checkpoint that records follow (train with log.keep = all to have them from the start), "
      "applies the gradients that the log holds, or computes them again (log.payload = metadata: about as long as all "
      "workers together needed), "
      "and holds what it rebuilds against the checksums of the log and every checkpoint on the way: the bits must be "
      "the same, or the exit code is 1. The folder of --output is a checkpoint for eval, generate and inspect.");
  auto options = std::make_shared<ReplayOptions>();
  auto keys = std::make_shared<OptionSet>(*command, "replay");
  command->add_option("run", options->run, "Run folder")->required();
  constexpr int64_t kMostSteps = kMany;
  keys->add("from", options->from, "Begin at the checkpoint of this step (0: the start values; -1: the oldest)")
      ->check(integer_in(-1, kMostSteps));
  keys->add("until", options->until, "Steps done where the replay ends (-1: as far as the log goes)")
      ->check(integer_in(-1, kMostSteps));
  keys->add(
      "data", options->data,
      "Dataset to compute gradients from again, where the log holds none (log.payload metadata); default: where it "
      "was in training");
  keys->add("compare", options->compare, "A checkpoint to hold the result against, to the bit");
  keys->add("output", options->output, "Folder for the result, a checkpoint");
  keys->add_flag("json", options->json, "Machine-readable result");
  return [keys, options] { return replay(*keys, *options); };
}

}  // namespace hat
