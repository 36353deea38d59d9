#include "commands/longtail_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "commands/bench.hpp"
#include "hat/commands/benchmark.hpp"
#include "hat/commands/longtail_figures.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/command_line.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/model/layout.hpp"

namespace hat {

namespace {

constexpr int64_t kArticleLongest = 8192;
constexpr int64_t kShortestTop = 2048;  // where the longest class begins
constexpr int64_t kMostCount = 1'000'000;
constexpr int64_t kValidationDocuments = 32;
constexpr int64_t kMostDocuments = 10'000'000;  // of a training

/// What is wrong with an option, while nobody knows yet where it came from.
struct BadOption {
  std::string option;
  std::string reason;
};

[[noreturn]] void refuse(const std::string& option, const std::string& reason) {
  throw BadOption{.option = option, .reason = reason};
}

int64_t number_of(const std::string& option, const std::string& text, int64_t least, int64_t most = kMostCount,
                  const char* also = "") {
  std::string value = text;
  const std::string problem = integer_in(least, most)(value);
  if (!problem.empty()) refuse(option, problem + also);
  return std::stoll(value);
}

/// "on_demand/hybrid/all:never@9": dispatch, mode, barriers (empty: the mode's), split.policy (empty: the deck's),
/// workers (0: all).
struct Policy {
  std::string text;
  std::string dispatch;
  std::string mode;
  std::string barriers;
  std::string split;
  int workers = 0;
};

Policy parse_policy(const std::string& text) {
  Policy policy;
  policy.text = text;
  const size_t at = text.find('@');
  if (at != std::string::npos) {
    std::string workers = text.substr(at + 1);
    if (!integer_in(1, kMostCount)(workers).empty()) {
      refuse("policies", fmt::format("'{}': '{}' is no number of workers", text, workers));
    }
    policy.workers = static_cast<int>(std::stoll(workers));
  }
  std::string names = text.substr(0, at);
  const size_t colon = names.find(':');
  if (colon != std::string::npos) {
    policy.split = names.substr(colon + 1);
    if (policy.split.empty()) refuse("policies", fmt::format("'{}': nothing behind the colon", text));
  }
  names.resize(std::min(colon, names.size()));
  const size_t first = names.find('/');
  if (first == std::string::npos) {
    refuse("policies", fmt::format("'{}' is not dispatch/mode, such as on_demand/hybrid", text));
  }
  const size_t second = names.find('/', first + 1);
  policy.dispatch = names.substr(0, first);
  policy.mode = names.substr(first + 1, second == std::string::npos ? second : second - first - 1);
  if (second != std::string::npos) policy.barriers = names.substr(second + 1);
  return policy;
}

constexpr const char* kNoBound = "unbounded";

/// Synchronous runs have staleness 0; the others one row for each S, of which only async may be unbounded.
std::vector<std::string> staleness_of(const Policy& policy, const LongtailOptions& options) {
  if (policy.mode == "sync") return {"0"};
  std::vector<std::string> staleness = options.staleness;
  if (policy.mode == "hybrid") std::erase(staleness, kNoBound);
  return staleness;
}

Settings settings_of(const Policy& policy, const std::string& staleness) {
  Settings settings{{"dispatch", policy.dispatch, "policies"},
                    {"mode", policy.mode, "policies"},
                    {"staleness", staleness, "staleness"}};
  if (!policy.barriers.empty()) settings.push_back({"barriers", policy.barriers, "policies"});
  if (!policy.split.empty()) settings.push_back({"split.policy", policy.split, "policies"});
  return settings;
}

/// Of every training; the text comes from the bench.
Settings length_of_run(const std::string& data, int64_t steps) {
  return {{"data.path", data, "text"},
          {"train.steps", std::to_string(steps), "steps"},
          {"train.tokens", "0", "steps"},
          {"train.epochs", "0", "steps"}};
}

int64_t longest_of(const std::string& lengths) {
  if (lengths == "article") return kArticleLongest;
  std::string value = lengths;
  if (!integer_in(kShortestTop, kMostCount)(value).empty()) {
    refuse("lengths", fmt::format("'{}' is neither article, equal nor an integer from {} to {}", lengths, kShortestTop,
                                  kMostCount));
  }
  return std::stoll(value);
}

/// Lengths as charged.
std::vector<int64_t> lengths_of(const std::string& lengths, int64_t documents, uint64_t seed) {
  if (lengths != "equal") return long_tail_documents(documents, longest_of(lengths), seed);
  return std::vector<int64_t>(static_cast<size_t>(documents), std::llround(long_tail_mean(kArticleLongest)));
}

std::vector<int64_t> real_lengths(const std::string& lengths, int64_t documents, const Deck& deck, uint64_t stream) {
  return scaled_down(lengths_of(lengths, documents, deck.seed + stream), deck.emulation.length_scale);
}

int64_t longest_document(const LongtailData& data, const Deck& deck) {
  const std::vector<int64_t> train = training_lengths(data, deck);
  const std::vector<int64_t> validation = validation_lengths(data, deck);
  return std::max(*std::max_element(train.begin(), train.end()),
                  *std::max_element(validation.begin(), validation.end()));
}

/// Block whose first use is nearest to this relative depth in FLOP, the lowest of several.
size_t nearest_block(const Deck& deck, size_t blocks, double depth) {
  size_t nearest = 0;
  for (size_t block = 1; block < blocks; ++block) {
    if (std::abs(depth_of(deck, block) - depth) < std::abs(depth_of(deck, nearest) - depth)) nearest = block;
  }
  return nearest;
}

/// Lists the runs group by group.
class LongtailPlanner {
 public:
  LongtailPlanner(const LongtailOptions& options, const DeckMaker& decks, int ranks, std::filesystem::path folder)
      : options_(options), decks_(decks), ranks_(ranks), folder_(std::move(folder)) {
    for (const std::string& text : options.policies) {
      if (text != "none") {
        policies_.push_back(parse_policy(text));
      } else if (options.policies.size() > 1) {
        refuse("policies", "'none' stands alone, not in a list");
      }
    }
    for (const std::string& text : options.staleness) {  // also where no policy is late
      if (text != kNoBound) number_of("staleness", text, 0, kMostStaleness, ", or unbounded");
    }
  }

  LongtailPlan plan() {
    check_policies();
    for (const std::string& text : options_.sequences) {
      const int64_t sequences = number_of("sequences", text, 1);
      for (const std::string& lengths : options_.lengths) {
        if (!policies_.empty()) add_policies("", lengths, sequences, {});
        if (!options_.barrier_depth.empty()) add_barrier_depths(lengths, sequences);
        if (options_.disturb) add_disturbances(lengths, sequences);
        if (options_.hiding) add_hiding(lengths, sequences);
      }
    }
    for (const double jitter : options_.jitters) {
      add_pair(fmt::format("jitter {}", jitter), "equal", 1,
               {{"worker.emulate.jitter", fmt::to_string(jitter), "jitters"}});
    }
    if (plan_.groups.empty()) refuse("policies", "none leaves nothing to run");
    return std::move(plan_);
  }

 private:
  LongtailGroup& start_group(const std::string& what, const std::string& lengths, int64_t sequences) {
    plan_.groups.push_back({.title = fmt::format("lengths {}, {} a worker and step{}", lengths, sequences,
                                                 what.empty() ? "" : ", " + what),
                            .runs = {}});
    return plan_.groups.back();
  }

  // As many documents as a run trains, and no more: what else is asked for must not change which ones it gets.
  const std::filesystem::path& data_file(const std::string& lengths, int64_t documents) {
    auto found = std::find_if(plan_.data.begin(), plan_.data.end(),
                              [&](const auto& d) { return d.lengths == lengths && d.documents == documents; });
    if (found == plan_.data.end()) {
      if (lengths != "equal") longest_of(lengths);
      found = plan_.data.insert(
          found,
          {.lengths = lengths, .documents = documents, .file = folder_ / fmt::format("{}-{}.h5", lengths, documents)});
      const int64_t longest = longest_document(*found, base());
      const int64_t most = base().model.max_length;
      if (longest > most) {
        throw decks_.error(
            "model.max_length",
            fmt::format("{} is less than the longest document of lengths {}, {} tokens", most, lengths, longest));
      }
    }
    return found->file;
  }

  void add_run(LongtailGroup& group, const Policy& policy, const std::string& staleness, const std::string& variant,
               const std::string& lengths, int64_t sequences, const Settings& special) {
    LongtailRun run;
    run.policy = policy.text;
    run.variant = variant;
    run.lengths = lengths;
    run.sequences = sequences;
    const int all_workers = ranks_ - servers();
    run.workers = policy.workers > 0 ? policy.workers : all_workers;
    check_ranks(policy, run.workers);
    const int64_t step_sequences = sequences * all_workers;
    if (step_sequences > kMostDocuments / options_.steps) {
      const bool steps_fit = step_sequences <= kMostDocuments / 1000;
      refuse(steps_fit ? "steps" : "sequences",
             fmt::format("{} of {} for each of {} are more than {} documents", counted(options_.steps, "step"),
                         counted(sequences, "sequence"), counted(all_workers, "worker"), kMostDocuments));
    }
    run.folder = folder_ / fmt::format("run-{:03}", runs_++);
    Settings settings = settings_of(policy, staleness);
    const std::string data = data_file(lengths, options_.steps * step_sequences).string();
    for (const Settings& more : {special, remedies_off(policy, staleness), length_of_run(data, options_.steps)}) {
      settings.insert(settings.end(), more.begin(), more.end());
    }
    if (!options_.precision.empty()) settings.push_back({"precision", options_.precision, "", /*overrides=*/true});
    settings.insert(settings.end(), {{"output", run.folder.string(), "keep"},
                                     {"batch_sequences", std::to_string(step_sequences), "sequences"},
                                     {"batch_tokens", "0", "sequences"},
                                     {"checkpoint.every", std::to_string(options_.steps), ""},
                                     {"eval.every", "0", ""},
                                     {"sample.tokens", "0", ""}});
    MadeDeck made = decks_.make(settings, policy.text);
    run.deck = std::move(made.deck);
    run.deck_text = std::move(made.text);
    run.blame = std::move(made.blame);
    try {
      check_emulated_ranks(run.deck.emulation, run.workers, /*nodes=*/1);  // how many there are is seen by the run
    } catch (const KeyError& bad) {
      throw run.blame(bad);
    }
    group.runs.push_back(std::move(run));
  }

  /// The words of all policies, before anything that depends on ranks: what is misspelt is no matter of theirs.
  void check_policies() {
    for (const Policy& policy : policies_) {
      for (const std::string& staleness : staleness_of(policy, options_)) {
        Settings settings = settings_of(policy, staleness);
        for (const Settings& more : {remedies_off(policy, staleness), length_of_run("not-yet", 1)}) {
          settings.insert(settings.end(), more.begin(), more.end());
        }
        decks_.make(settings, policy.text);
      }
    }
  }

  void check_ranks(const Policy& policy, int workers) {
    const int all_workers = ranks_ - servers();
    if (workers >= 1 && workers <= all_workers) return;
    const std::string reason = fmt::format("'{}' needs {} beside {}, and there {} {} (mpirun -n)", policy.text,
                                           counted(std::max(1, workers), "rank"), counted(servers(), "server"),
                                           ranks_ == 1 ? "is" : "are", counted(ranks_, "rank"));
    if (policy.workers > 0) refuse("policies", reason);
    throw InputError("command line", "", reason);
  }

  /// Remedies for delay that the deck has and this policy can do nothing with.
  Settings remedies_off(const Policy& policy, const std::string& staleness) {
    Settings off;
    const Deck& deck = base();
    const bool never_late = policy.mode == "sync" || staleness == "0" || policy.barriers == "all";
    const bool no_steps = staleness == kNoBound;
    const bool not_exact = policy.mode == "async" && !async_is_exact();
    const StalenessLimitConfig& limit = deck.staleness_limit;
    const auto switch_off = [&](const char* key, const char* value) {
      off.push_back({key, value, "policies", /*overrides=*/true});
    };
    if (deck.delay.predict && (never_late || no_steps || not_exact)) switch_off("staleness.predict", "false");
    if (deck.delay.compensation > 0 && (never_late || no_steps || not_exact)) switch_off("staleness.compensation", "0");
    if (deck.delay.sync_steps > 0 && (never_late || no_steps)) switch_off("staleness.sync_steps", "0");
    if (deck.optimizer.momentum_rule == MomentumRule::staleness && never_late) {
      switch_off("optimizer.momentum_rule", "fixed");
    }
    if (limit.versions > 0 && !no_steps) switch_off("staleness.limit", "0");
    if (limit.seconds > 0 && !no_steps) switch_off("staleness.limit_s", "0");
    if (limit.action != OverLimit::apply && !no_steps) switch_off("staleness.over_limit", "apply");
    return off;
  }

  void add_policies(const std::string& variant, const std::string& lengths, int64_t sequences,
                    const Settings& special) {
    LongtailGroup& group = start_group(variant, lengths, sequences);
    for (const Policy& policy : policies_) {
      for (const std::string& staleness : staleness_of(policy, options_)) {
        add_run(group, policy, staleness, variant, lengths, sequences, special);
      }
    }
    if (group.runs.empty()) refuse("staleness", "unbounded is for mode async, and no policy has it");
  }

  /// The traditional way beside HAT's.
  void add_pair(const std::string& variant, const std::string& lengths, int64_t sequences, const Settings& special) {
    LongtailGroup& group = start_group(variant, lengths, sequences);
    add_run(group, parse_policy("static/sync"), "0", variant, lengths, sequences, special);
    add_run(group, parse_policy("on_demand/hybrid"), first_bound(), variant, lengths, sequences, special);
  }

  void add_barrier_depths(const std::string& lengths, int64_t sequences) {
    LongtailGroup& group = start_group("one barrier block", lengths, sequences);
    add_run(group, parse_policy("on_demand/hybrid/none"), "1", "no barrier", lengths, sequences, {});
    Deck deck = group.runs.front().deck;
    fill_vocabulary(deck.model);
    const ModelLayout layout = make_layout(deck.model);
    std::set<size_t> chosen;
    for (const double depth : options_.barrier_depth) {
      const size_t block = nearest_block(deck, layout.blocks.size(), depth);
      if (!chosen.insert(block).second) continue;
      const std::string& name = layout.blocks[block].name;
      add_run(group, parse_policy("on_demand/hybrid/" + name), "1",
              fmt::format("{} at {:.2f}", name, depth_of(deck, block)), lengths, sequences, {});
    }
  }

  void add_disturbances(const std::string& lengths, int64_t sequences) {
    const Deck& deck = base();
    if (!deck.emulation.device.on()) refuse("disturb", "needs emulated devices (worker.emulate.speed)");
    std::vector<double> speeds = deck.emulation.device.speed;
    if (speeds.size() == 1) speeds.resize(static_cast<size_t>(ranks_ - servers()), speeds.front());
    speeds.front() /= 2;
    add_pair("one at half speed", lengths, sequences,
             {{"worker.emulate.speed", fmt::format("{}", fmt::join(speeds, ",")), "disturb", /*overrides=*/true}});
    // A worker that stands still for a second out of four, at random.
    add_pair("one stalls", lengths, sequences,
             {{"worker.emulate.stall_every_s", "3", "disturb"},
              {"worker.emulate.stall_for_s", "1", "disturb"},
              {"worker.emulate.disturbed", "0", "disturb"}});
  }

  void add_hiding(const std::string& lengths, int64_t sequences) {
    LongtailGroup& group = start_group("transfers hidden", lengths, sequences);
    for (const char* depth : {"0", "1", "2"}) {
      add_run(group, parse_policy("on_demand/hybrid"), first_bound(), fmt::format("prefetch {}", depth), lengths,
              sequences, {{"prefetch.depth", depth, "hiding"}});
    }
  }

  /// The first S that mode hybrid can have.
  std::string first_bound() const {
    const auto bound = std::find_if(options_.staleness.begin(), options_.staleness.end(),
                                    [](const std::string& staleness) { return staleness != kNoBound; });
    return bound == options_.staleness.end() ? "1" : *bound;
  }

  /// Whether mode async has the rule exact in this deck.
  bool async_is_exact() { return decks_.is_set("staleness.rule") && base().staleness_rule == StalenessRule::exact; }

  /// The deck without what a run sets.
  const Deck& base() {
    if (!base_) base_ = decks_.make(length_of_run("not-yet", 1), "").deck;
    return *base_;
  }
  int servers() { return static_cast<int>(base().servers); }

  const LongtailOptions& options_;
  const DeckMaker& decks_;
  int ranks_;
  std::filesystem::path folder_;
  std::vector<Policy> policies_;
  std::optional<Deck> base_;
  int runs_ = 0;
  LongtailPlan plan_;
};

}  // namespace

/// A deck, the keys bound to it and the deck file, as the command line has them.
struct DeckMaker::Parsed {
  explicit Parsed(std::vector<std::string> arguments) {
    add_deck_keys(options, deck);
    app.add_option("deck", file);
    refuse_misplaced_flag_values(app, arguments);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    try {
      app.parse(arguments);
    } catch (const CLI::ParseError& error) {
      throw command_line_error(app, error);
    }
  }
  CLI::App app{"hat bench longtail"};
  OptionSet options{app};
  Deck deck;
  std::string file;
};

namespace {

/// Keys that every run has from the bench, and the option that asks for them.
constexpr std::array<std::array<const char*, 2>, 13> kOwnKeys{{{"dispatch", "policies"},
                                                               {"mode", "policies"},
                                                               {"staleness", "staleness"},
                                                               {"batch_sequences", "sequences"},
                                                               {"batch_tokens", "sequences"},
                                                               {"train.steps", "steps"},
                                                               {"train.tokens", "steps"},
                                                               {"train.epochs", "steps"},
                                                               {"data.path", "text"},
                                                               {"output", "keep"},
                                                               {"checkpoint.every", ""},
                                                               {"eval.every", ""},
                                                               {"sample.tokens", ""}}};

/// The error with the policy that it came up with, unless that is named already.
InputError with_policy(const InputError& error, const std::string& policy) {
  const std::string line = error.what();
  const std::string name = fmt::format("'{}'", policy);
  if (policy.empty() || line.find(name) != std::string::npos) return error;
  return InputError(fmt::format("{} (with {})", line, name));
}

/// Only a deck, which may be made for training, may have a key that the bench sets.
void refuse_if_set(const OptionSet& options, const std::string& key, const std::string& option) {
  if (options.nearness(key) < OptionSet::Nearness::environment) return;
  throw InputError(
      options.place(key), options.name(key),
      fmt::format("is what the bench varies or sets itself{}", option.empty() ? "" : fmt::format(" (--{})", option)));
}

}  // namespace

DeckMaker::DeckMaker(std::vector<std::string> arguments, const OptionSet& bench_keys)
    : arguments_(std::move(arguments)), bench_keys_(bench_keys) {
  const auto user = std::make_shared<Parsed>(arguments_);
  file_ = user->file;
  if (file_.empty()) {
    throw InputError("command line", "deck",
                     "is needed: one with a model and emulated devices, such as inputs/bench_longtail.toml");
  }
  user->options.load(file_);
  for (const auto& [key, option] : kOwnKeys) refuse_if_set(user->options, key, option);
  if (user->deck.fault.at != FaultPoint::none) {
    throw InputError(user->options.place("fault.at"), user->options.name("fault.at"),
                     "faults come to runs of hat train only");
  }
  user_ = user;
}

bool DeckMaker::is_set(const std::string& key) const { return !user_->options.is_default(key); }

InputError DeckMaker::error(const std::string& key, const std::string& reason) const {
  return user_->options.error(key, reason);
}

MadeDeck DeckMaker::make(const Settings& settings, const std::string& policy) const {
  const auto parsed = std::make_shared<Parsed>(arguments_);
  OptionSet& options = parsed->options;
  options.load(file_);
  for (const Setting& setting : settings) {
    if (!setting.overrides) refuse_if_set(options, setting.key, setting.option);
  }
  const auto place_of = [&](const Setting& setting) -> std::string {
    if (setting.option.empty()) return "hat bench longtail";
    const std::string place = bench_keys_.place(setting.option) + ": " + bench_keys_.name(setting.option);
    return setting.option == "policies" && !policy.empty() ? fmt::format("{}: '{}'", place, policy) : place;
  };
  try {
    for (const Setting& setting : settings) options.set(setting.key, setting.value, place_of(setting));
    resolve_presets(options, parsed->deck);
  } catch (const InputError& bad) {
    throw with_policy(bad, policy);
  }
  return {.deck = parsed->deck, .text = options.effective(), .blame = [parsed, policy](const KeyError& bad) {
            return with_policy(parsed->options.error(bad), policy);
          }};
}

LongtailPlan plan_longtail(const LongtailOptions& options, const OptionSet& keys, const DeckMaker& decks, int ranks,
                           const std::filesystem::path& folder) {
  try {
    return LongtailPlanner(options, decks, ranks, folder).plan();
  } catch (const BadOption& bad) {
    throw keys.error(bad.option, bad.reason);
  }
}

std::vector<int64_t> training_lengths(const LongtailData& data, const Deck& deck) {
  return real_lengths(data.lengths, data.documents, deck, 0);
}

std::vector<int64_t> validation_lengths(const LongtailData& data, const Deck& deck) {
  return real_lengths(data.lengths, kValidationDocuments, deck, 1);
}

}  // namespace hat
