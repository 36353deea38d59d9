#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands/all_ranks.hpp"
#include "commands/bench.hpp"
#include "commands/compute_choice.hpp"
#include "commands/longtail_plan.hpp"
#include "commands/training_run.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/commands/longtail_figures.hpp"
#include "hat/config/checks.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/cut_dataset.hpp"
#include "hat/gradient/shard_size.hpp"
#include "hat/metrics/account.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

/// Longest wait for the ranks that take part in a training; its own time-outs are far shorter.
constexpr double kWaitForRun_s = 1e6;

/// Where data and run folders are: removed at the end unless the user keeps it. Of rank 0.
class BenchFolder {
 public:
  BenchFolder(const std::string& keep, const OptionSet& keys) : is_kept_(!keep.empty()) {
    if (is_kept_) {
      path_ = fs::absolute(keep);
      if (fs::exists(path_) && !(fs::is_directory(path_) && fs::is_empty(path_))) {
        throw keys.error("keep", path_.string() + " exists and is no empty folder");
      }
      std::error_code error;
      fs::create_directories(path_, error);
      if (error) throw keys.error("keep", path_.string() + ": " + error.message());
      return;
    }
    std::string name = (fs::temp_directory_path() / "hat-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error(name + " cannot be made");
    path_ = name;
  }
  ~BenchFolder() {
    std::error_code ignored;
    if (!is_kept_) fs::remove_all(path_, ignored);
  }
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  bool is_kept_;
  fs::path path_;
};

/// Standard output of this process goes into a file: what a training prints is not the bench's result.
class OutputToFile {
 public:
  explicit OutputToFile(const fs::path& file) {
    std::fflush(stdout);
    saved_ = ::dup(STDOUT_FILENO);
    const int log = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (saved_ < 0 || log < 0 || ::dup2(log, STDOUT_FILENO) < 0) throw Error(file.string() + " cannot be written");
    ::close(log);
  }
  ~OutputToFile() {
    std::fflush(stdout);
    ::dup2(saved_, STDOUT_FILENO);
    ::close(saved_);
  }
  OutputToFile(const OutputToFile&) = delete;
  OutputToFile& operator=(const OutputToFile&) = delete;

 private:
  int saved_ = -1;
};

void write_data(const LongtailOptions& options, const LongtailData& data, const Deck& deck) {
  std::optional<Dataset> source;
  if (!options.text.empty()) source.emplace(options.text);
  const auto text = [&](Split split) {
    if (source) return make_dataset_text(*source, split);
    return make_markov_text(deck.seed, split == Split::train ? 0 : 1);
  };
  const std::unique_ptr<TextSource> train = text(Split::train);
  const std::unique_ptr<TextSource> validation = text(Split::validation);
  write_cut_dataset(data.file, {training_lengths(data, deck), *train}, {validation_lengths(data, deck), *validation});
}

/// A training and what came of it, on rank 0.
struct Done {
  const LongtailRun* run = nullptr;
  RunResult result;
  LongtailFigures figures;
};

bool takes_part(const Communicator& world, const LongtailRun& run) {
  return world.rank() < run.workers + static_cast<int>(run.deck.servers);
}

/// Of every training, before the first one: what is refused costs no finished one. Collective.
ExitCode check_all(const Communicator& world, const LongtailPlan& plan) {
  for (const LongtailGroup& group : plan.groups) {
    for (const LongtailRun& run : group.runs) {
      const Communicator ranks = world.split(takes_part(world, run) ? 0 : -1);
      auto code = ExitCode::success;
      if (takes_part(world, run)) code = check_training(ranks, run.deck, run.blame);
      code = static_cast<ExitCode>(world.all_reduce_max(static_cast<int64_t>(code)));
      if (code != ExitCode::success) return code;
    }
  }
  return ExitCode::success;
}

/// One training on the first ranks; the others wait. The result is rank 0's.
ExitCode run_one(const Communicator& world, const LongtailRun& run, RunResult& result) {
  auto code = ExitCode::success;
  {
    const Communicator ranks = world.split(takes_part(world, run) ? 0 : -1);
    std::optional<OutputToFile> quiet;
    const std::string log = run.folder.string() + ".log";
    if (world.rank() == 0) quiet.emplace(log);
    // A training that aborts takes the bench with it, and leaves its folder.
    if (takes_part(world, run)) {
      code = run_training(ranks, run.deck, run.deck_text,
                          {.result = &result, .failure_note = "; its output: " + log, .blame = run.blame});
    }
    world.wait_barrier(kWaitForRun_s, "the other ranks to end a training");
  }
  return static_cast<ExitCode>(world.all_reduce_max(static_cast<int64_t>(code)));
}

/// Steps that a training loss is averaged over.
int64_t window_of(const LongtailOptions& options) { return std::max<int64_t>(1, options.steps / 10); }

void fill_figures(const LongtailOptions& options, Done& done) {
  Deck deck = done.run->deck;
  const Dataset dataset(deck.data.path);
  if (deck.model.vocabulary == 0) deck.model.vocabulary = dataset.tokenizer().vocabulary();
  DataOrder order(dataset, deck, piece_tokens(deck));
  done.figures = figures_of(deck, charged_flop(deck, order, options.steps), done.result, window_of(options));
}

/// The loss that the slowest learner of a group has at the end, and when each had it.
void compare_losses(const LongtailOptions& options, std::vector<Done>& group) {
  double highest = group.front().figures.loss;
  for (const Done& done : group) highest = std::max(highest, done.figures.loss);
  for (Done& done : group) done.figures.seconds_to_loss = seconds_to_loss(done.result, window_of(options), highest);
}

/// A training, and what it gave: its row of the table, should a later one take the whole job with it.
ExitCode train_next(const Communicator& world, const LongtailOptions& options, const LongtailRun& run,
                    std::vector<Done>& group) {
  Done done{.run = &run, .result = {}, .figures = {}};
  ExitCode code = run_one(world, run, done.result);
  if (code != ExitCode::success) return code;
  code = on_all_ranks(world, [&] {
    if (world.rank() == 0) fill_figures(options, done);
  });
  if (code != ExitCode::success) return code;
  if (world.rank() == 0) {
    fmt::print(stderr, "  utilization {} %, {:.2f} s, training loss {:.4f}\n", percent(done.figures.utilization),
               done.figures.seconds, done.figures.loss);
  }
  group.push_back(std::move(done));
  return ExitCode::success;
}

std::string staleness_name(const Deck& deck) {
  return deck.staleness == kUnbounded ? "unbounded" : std::to_string(deck.staleness);
}

/// The groups as far as they have come: the last one may miss some where the exit code is no success.
ExitCode run_all(const Communicator& world, const LongtailOptions& options, const LongtailPlan& plan,
                 std::vector<std::vector<Done>>& groups) {
  size_t runs = 0;
  for (const LongtailGroup& group : plan.groups) runs += group.runs.size();
  size_t number = 0;
  auto code = ExitCode::success;
  for (const LongtailGroup& group : plan.groups) {
    std::vector<Done> done;
    for (const LongtailRun& run : group.runs) {
      if (world.rank() == 0) {
        const bool is_titled = group.title.find(run.variant) != std::string::npos;
        fmt::print(stderr, "training {} of {}: {}, {}, S = {}{}{}\n", ++number, runs, group.title, run.policy,
                   staleness_name(run.deck), is_titled ? "" : ", ", is_titled ? "" : run.variant);
      }
      code = train_next(world, options, run, done);
      if (code != ExitCode::success) break;
    }
    if (done.empty()) break;
    if (world.rank() == 0) compare_losses(options, done);
    groups.push_back(std::move(done));
    if (code != ExitCode::success) break;
  }
  return code;
}

std::string optional_number(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : std::string("none");
}

std::optional<double> joules_to_loss(const LongtailFigures& figures) {
  if (!figures.joules || !figures.seconds_to_loss) return std::nullopt;
  return *figures.joules * *figures.seconds_to_loss / figures.seconds;
}

/// What the last trial of splitting came to.
std::string split_text(const RunResult& result) {
  if (result.split_decisions.empty()) return result.unsplit_steps > 0 ? "?" : "-";
  return result.split_decisions.back().taken == Splitting::planned ? "stays" : "off";
}

nlohmann::ordered_json trials_json(const RunResult& result) {
  auto trials = nlohmann::ordered_json::array();
  for (const SplitDecision& decision : result.split_decisions) trials.push_back(json_of(decision));
  return trials;
}

void print_group(const LongtailGroup& group, const std::vector<Done>& runs) {
  fmt::print("\n{}\n", group.title);
  Table table({"policy", "S", "variant", "util %", "ideal %", "s", "speed", "s to loss", "comm %", "bytes/token",
               "late mean", "most", "J", "J to loss", "other %", "lag ms", "gangs", "off", "split"});
  for (const Done& done : runs) {
    const LongtailFigures& f = done.figures;
    table.add(
        {done.run->policy, staleness_name(done.run->deck), done.run->variant, percent(f.utilization), percent(f.ideal),
         fmt::format("{:.2f}", f.seconds), fmt::format("{:.2f}", runs.front().figures.seconds / f.seconds),
         optional_number(f.seconds_to_loss, "{:.2f}"), percent(f.communication_share),
         fmt::format("{:.0f}", f.bytes_per_token), fmt::format("{:.2f}", f.staleness_mean),
         std::to_string(f.staleness_most), optional_number(f.joules, "{:.0f}"),
         optional_number(joules_to_loss(f), "{:.0f}"), percent(f.activity_shares[static_cast<size_t>(Activity::other)]),
         fmt::format("{:.1f}", 1e3 * f.lag_mean_s), std::to_string(done.result.gangs),
         std::to_string(done.result.unsplit_steps), split_text(done.result)});
  }
  table.print();
}

/// Of all runs: where a deck leaves it open, it is chosen once (or deterministic).
const char* precision_of(const Deck& deck) { return deck.precision == Precision::bf16 ? "bf16" : "fp32"; }

constexpr const char* kLegend =
    "\nutil %: charged FLOP over what all devices could do in the time (none: devices are not emulated); ideal %: the "
    "same of a greedy schedule of\nthese sequences, unsplit, without communication (none: with unbounded staleness, or "
    "S above 0 and shares fixed in advance, there is no such\nschedule); s: to the same tokens, validation left out; "
    "speed: against the first row; s to loss: to the training loss (smoothed) that the\nslowest learner of the table "
    "ends with; comm %, other %: of the workers' wall clock; bytes/token: real ones; late: versions; J: modelled\nfrom "
    "busy_watts and idle_watts (none: not told); lag: mean by which the emulation was behind its devices; "
    "gangs:\nsequences "
    "that several workers computed at once; off: steps in which none was, to try that or because it was faster; "
    "split: what the\nlast trial of that came to (-: none was needed, ?: none came to its end: it takes some 20 + 5 S "
    "steps)\n";

/// Whether all trainings were done.
bool is_whole(const LongtailPlan& plan, const std::vector<std::vector<Done>>& groups) {
  return groups.size() == plan.groups.size() && groups.back().size() == plan.groups.back().runs.size();
}

void print_tables(const LongtailPlan& plan, const std::vector<std::vector<Done>>& groups, const Machine& machine,
                  const PeakRates& peaks) {
  const Deck& deck = plan.groups.front().runs.front().deck;
  print_bench_head(static_cast<int>(deck.worker.threads), machine, peaks);
  fmt::print("precision {}\n", precision_of(deck));
  for (size_t i = 0; i < groups.size(); ++i) print_group(plan.groups[i], groups[i]);
  if (!is_whole(plan, groups)) fmt::print("\nnot all: the training behind the last row failed\n");
  fmt::print("{}", kLegend);
}

nlohmann::ordered_json run_json(const Done& done, const Done& first) {
  const LongtailFigures& f = done.figures;
  const LongtailRun& run = *done.run;
  nlohmann::ordered_json shares;
  for (size_t a = 0; a < f.activity_shares.size(); ++a) shares[kActivityNames[a]] = f.activity_shares[a];
  return {{"policy", run.policy},
          {"staleness", staleness_name(run.deck)},
          {"variant", run.variant},
          {"lengths", run.lengths},
          {"sequences", run.sequences},
          {"workers", run.workers},
          {"steps", done.result.steps.size()},
          {"tokens", f.tokens},
          {"charged_tokens", f.charged_tokens},
          {"utilization", json_or_null(f.utilization)},
          {"ideal_utilization", json_or_null(f.ideal)},
          {"seconds", f.seconds},
          {"step_seconds", f.seconds / static_cast<double>(done.result.steps.size())},
          {"speed_relative", first.figures.seconds / f.seconds},
          {"seconds_to_loss", json_or_null(f.seconds_to_loss)},
          {"train_loss", f.loss},
          {"validation_loss", f.validation_loss},
          {"communication_share", f.communication_share},
          {"activity_shares", shares},
          {"bytes_per_token", f.bytes_per_token},
          {"staleness_mean", f.staleness_mean},
          {"staleness_most", f.staleness_most},
          {"gangs", done.result.gangs},
          {"gang_members", done.result.gang_members},
          {"unsplit_steps", done.result.unsplit_steps},
          {"split_trials", trials_json(done.result)},
          {"joules_modelled", json_or_null(f.joules)},
          {"joules_to_loss_modelled", json_or_null(joules_to_loss(f))},
          {"joules_counted_of_this_machine", json_or_null(f.counted_joules)},
          {"lag_mean_s", f.lag_mean_s},
          {"lag_worst_s", f.lag_worst_s}};
}

void print_json(const LongtailOptions& options, const LongtailPlan& plan, const std::vector<std::vector<Done>>& groups,
                const Machine& machine, const PeakRates& peaks) {
  const Deck& deck = plan.groups.front().runs.front().deck;
  nlohmann::ordered_json json = bench_json("bench longtail", static_cast<int>(deck.worker.threads), machine, peaks);
  json["deck"] = options.deck;
  json["text"] = options.text.empty() ? "synthetic" : options.text;
  json["loss_window_steps"] = window_of(options);
  json["precision"] = precision_of(deck);
  json["emulated"] = {{"flop_per_s", deck.emulation.device.speed},
                      {"bandwidth", deck.emulation.network.bandwidth},
                      {"length_scale", deck.emulation.length_scale},
                      {"busy_watts", deck.emulation.device.busy_watts},
                      {"idle_watts", deck.emulation.device.idle_watts}};
  json["complete"] = is_whole(plan, groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    nlohmann::ordered_json group{{"title", plan.groups[i].title}, {"runs", nlohmann::ordered_json::array()}};
    for (const Done& done : groups[i]) group["runs"].push_back(run_json(done, groups[i].front()));
    json["groups"].push_back(std::move(group));
  }
  fmt::print("{}\n", json.dump(2));
}

/// Where the deck leaves the precision open it is measured once, on as many ranks as there are workers: trainings that
/// measured for themselves could compute differently, and could not be compared. Collective.
ExitCode choose_precision(const Communicator& world, const LongtailPlan& plan, LongtailOptions& options) {
  const LongtailRun& run = plan.groups.front().runs.front();
  if (run.deck.precision != Precision::automatic || run.deck.deterministic) return ExitCode::success;
  ModelConfig model = run.deck.model;
  fill_vocabulary(model);
  ProductTimes times;
  const ExitCode code = measure_slowest(world, world.rank() < run.workers, model,
                                        {.threads = static_cast<int>(run.deck.worker.threads)}, times);
  if (code == ExitCode::success) options.precision = name_of(faster_of(times));
  return code;
}

ExitCode bench_longtail(OptionSet& bench_keys, LongtailOptions& options, const CLI::App& command) {
  MpiEnvironment mpi;
  const Communicator world = Communicator::world();
  std::unique_ptr<BenchFolder> folder;
  std::optional<DeckMaker> decks;
  std::string path;
  ExitCode code = on_all_ranks(world, [&] {
    refuse_accidental_singleton();
    decks.emplace(command.remaining(), bench_keys);
    options.deck = decks->deck_file();
    bench_keys.load(options.deck);
    if (world.rank() == 0) folder = std::make_unique<BenchFolder>(options.keep, bench_keys);
  });
  if (code != ExitCode::success) return code;
  path = world.broadcast(folder ? folder->path().string() : "", 0);
  LongtailPlan plan;
  const auto make_plan = [&] { plan = plan_longtail(options, bench_keys, *decks, world.size(), path); };
  code = on_all_ranks(world, make_plan);
  if (code == ExitCode::success) code = choose_precision(world, plan, options);
  if (code != ExitCode::success) return code;
  code = on_all_ranks(world, [&] {
    make_plan();
    if (world.rank() != 0) return;
    for (const LongtailData& data : plan.data) write_data(options, data, plan.groups.front().runs.front().deck);
  });
  if (code == ExitCode::success) code = check_all(world, plan);
  if (code != ExitCode::success) return code;
  const Machine machine = describe_machine();
  std::optional<PeakRates> peaks;
  if (world.rank() == 0) peaks.emplace(std::vector<Element>{Element::fp32}, machine.cores, machine);
  world.wait_barrier(kWaitForRun_s, "the machine's peak to be measured");
  std::vector<std::vector<Done>> groups;
  code = run_all(world, options, plan, groups);
  if (world.rank() == 0 && !groups.empty()) {
    peaks->measure_again();
    if (options.json) {
      print_json(options, plan, groups, machine, *peaks);
    } else {
      print_tables(plan, groups, machine, *peaks);
    }
  }
  world.wait_barrier(kWaitForRun_s, "the result to be printed");
  return code;
}

void add_options(CLI::App& command, OptionSet& keys, LongtailOptions& options) {
  keys.add("policies", options.policies,
           "dispatch/mode[/barriers][:split.policy][@workers], the first is what the others are compared with; none: "
           "only what the options below ask for");
  keys.add("staleness", options.staleness, "S of hybrid and async, one row for each; unbounded: async");
  keys.add("sequences", options.sequences, "Sequences a worker and step, one table for each");
  keys.add("lengths", options.lengths,
           "article: 62 % of 32-511, 28 % of 512-2047, 10 % of 2048-8192 tokens; a number instead of 8192; equal");
  keys.add("steps", options.steps, "Steps of each training")->check(integer_in(2, 1'000'000));
  keys.add("barrier_depth", options.barrier_depth,
           "One table more: hybrid, S = 1, with a barrier on the block whose first use is nearest to each of these "
           "relative depths in FLOP (0 first, 1 behind the head)")
      ->check(real_in(0, 1));
  keys.add("jitters", options.jitters,
           "One table more for each: devices of this relative jitter, equal lengths, one sequence a worker and step")
      ->check(real_in(0, 10));
  keys.add_flag("disturb", options.disturb, "Two tables more: one worker at half speed, one that stalls");
  keys.add_flag("hiding", options.hiding, "One table more: hybrid with prefetch.depth 0, 1 and 2");
  keys.add("text", options.text, "Dataset whose text is cut to documents of these lengths; otherwise synthetic text");
  keys.add(
      "keep", options.keep,
      "Empty or new folder that data and runs stay in; otherwise they are removed, unless the bench is killed (then "
      "hat-bench-* stays in the folder for temporary files)");
  command.add_flag("--json", options.json, "Print a JSON object instead of the tables")->check(true_or_false());
}

}  // namespace

CommandBody add_bench_longtail(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("longtail",
                                           "Policies and modes on text with a long tail of lengths: whole trainings, "
                                           "compared in tables: hat bench longtail DECK [OPTIONS]");
  command->footer(
      "Examples: mpirun -n 17 hat bench longtail inputs/bench_longtail.toml\n"
      "          mpirun -n 17 hat bench longtail inputs/bench_longtail.toml --policies balanced/sync,on_demand/hybrid "
      "--staleness 0,1,2,4 --sequences 1,2,4,8\n"
      "The deck is needed: it has model, optimizer, emulated devices and network, watts, servers. Every deck key is an "
      "option too (--model.width=64),\nand a HAT_* variable, except those that the bench sets itself.");
  command->allow_extras();  // the deck and its keys, some of which are called like options here: DeckMaker reads them
  auto options = std::make_shared<LongtailOptions>();
  auto bench_keys = std::make_shared<OptionSet>(*command, "bench");
  add_options(*command, *bench_keys, *options);
  return [command, bench_keys, options] { return bench_longtail(*bench_keys, *options, *command); };
}

}  // namespace hat
