#include "commands/longtail_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "commands/bench.hpp"
#include "hat/commands/benchmark.hpp"
#include "hat/commands/longtail_figures.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/command_line.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/core/error.hpp"
#include "hat/model/layout.hpp"

namespace hat {

namespace {

constexpr int64_t kArticleLongest = 8192;
constexpr int64_t kShortestTop = 2048;  // where the longest class begins
constexpr int64_t kMostCount = 1'000'000;
constexpr int64_t kValidationDocuments = 32;

/// What is wrong with an option, while nobody knows yet where it came from.
struct BadOption {
  std::string option;
  std::string reason;
};

[[noreturn]] void refuse(const std::string& option, const std::string& reason) {
  throw BadOption{.option = option, .reason = reason};
}

int64_t number_of(const std::string& option, const std::string& text, int64_t least) {
  std::string value = text;
  const std::string problem = integer_in(least, kMostCount)(value);
  if (!problem.empty()) refuse(option, problem);
  return std::stoll(value);
}

/// "on_demand/hybrid/all@9": dispatch, mode, barriers (empty: the mode's), workers (0: all).
struct Policy {
  std::string text;
  std::string dispatch;
  std::string mode;
  std::string barriers;
  int workers = 0;
};

Policy parse_policy(const std::string& text) {
  Policy policy;
  policy.text = text;
  const size_t at = text.find('@');
  if (at != std::string::npos) policy.workers = static_cast<int>(number_of("policies", text.substr(at + 1), 1));
  const std::string names = text.substr(0, at);
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
  Settings settings{{"dispatch", policy.dispatch}, {"mode", policy.mode}, {"staleness", staleness}};
  if (!policy.barriers.empty()) settings.emplace_back("barriers", policy.barriers);
  return settings;
}

int64_t longest_of(const std::string& lengths) {
  return lengths == "article" ? kArticleLongest : number_of("lengths", lengths, kShortestTop);
}

/// Lengths as charged.
std::vector<int64_t> lengths_of(const std::string& lengths, int64_t documents, uint64_t seed) {
  if (lengths != "equal") return long_tail_documents(documents, longest_of(lengths), seed);
  return std::vector<int64_t>(static_cast<size_t>(documents), std::llround(long_tail_mean(kArticleLongest)));
}

std::vector<int64_t> real_lengths(const std::string& lengths, int64_t documents, const Deck& deck, uint64_t stream) {
  std::vector<int64_t> real =
      scaled_down(lengths_of(lengths, documents, deck.seed + stream), deck.emulation.length_scale);
  const int64_t longest = *std::max_element(real.begin(), real.end());
  if (longest > deck.model.max_length) {
    throw InputError("deck", "model.max_length",
                     fmt::format("{} is less than the longest document of lengths {}, {} tokens", deck.model.max_length,
                                 lengths, longest));
  }
  return real;
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
class Planner {
 public:
  Planner(const LongtailOptions& options, const DeckMaker& decks, int ranks, std::filesystem::path folder)
      : options_(options), decks_(decks), ranks_(ranks), folder_(std::move(folder)) {
    for (const std::string& text : options.policies) {
      if (text != "none") policies_.push_back(parse_policy(text));
    }
  }

  LongtailPlan plan() {
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
      add_pair(fmt::format("jitter {}", jitter), "equal", 1, {{"worker.emulate.jitter", fmt::to_string(jitter)}});
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

  const std::filesystem::path& data_file(const std::string& lengths, int64_t documents) {
    auto found =
        std::find_if(plan_.data.begin(), plan_.data.end(), [&](const auto& d) { return d.lengths == lengths; });
    if (found == plan_.data.end()) {
      if (lengths != "equal") longest_of(lengths);
      found = plan_.data.insert(found, {.lengths = lengths, .file = folder_ / (lengths + ".h5")});
    }
    found->documents = std::max(found->documents, documents);
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
    if (run.workers > all_workers || run.workers < 1) {
      refuse("policies", fmt::format("'{}' needs {} ranks beside {} servers, and there are {} ranks (mpirun -n)",
                                     policy.text, std::max(1, run.workers), servers(), ranks_));
    }
    const int64_t step_sequences = sequences * all_workers;
    run.folder = folder_ / fmt::format("run-{:03}", runs_++);
    Settings settings = settings_of(policy, staleness);
    for (const Settings& more : {special, remedies_off(policy, staleness)}) {
      settings.insert(settings.end(), more.begin(), more.end());
    }
    if (!options_.precision.empty()) settings.emplace_back("precision", options_.precision);
    settings.insert(settings.end(), {{"data.path", data_file(lengths, options_.steps * step_sequences).string()},
                                     {"output", run.folder.string()},
                                     {"batch_sequences", std::to_string(step_sequences)},
                                     {"batch_tokens", "0"},  // a deck may have some
                                     {"train.steps", std::to_string(options_.steps)},
                                     {"checkpoint.every", std::to_string(options_.steps)},
                                     {"eval.every", "0"},
                                     {"sample.tokens", "0"}});
    std::tie(run.deck, run.deck_text) = decks_.make(settings);
    check_emulated_ranks(run.deck.emulation, run.workers, /*nodes=*/1);  // how many there are is seen by the run
    group.runs.push_back(std::move(run));
  }

  /// Remedies for delay that the deck has and this policy can do nothing with.
  Settings remedies_off(const Policy& policy, const std::string& staleness) {
    Settings off;
    const Deck& deck = base();
    const bool never_late = policy.mode == "sync" || staleness == "0" || policy.barriers == "all";
    const bool no_steps = staleness == kNoBound;
    const bool not_exact = policy.mode == "async" && !async_is_exact();
    if (deck.delay.predict && (never_late || no_steps || not_exact)) off.emplace_back("staleness.predict", "false");
    if (deck.delay.compensation > 0 && (never_late || no_steps || not_exact))
      off.emplace_back("staleness.compensation", "0");
    if (deck.delay.sync_steps > 0 && (never_late || no_steps)) off.emplace_back("staleness.sync_steps", "0");
    if (deck.optimizer.momentum_rule == MomentumRule::staleness && never_late) {
      off.emplace_back("optimizer.momentum_rule", "fixed");
    }
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
    const double speed = deck.emulation.device.speed.front();
    std::string speeds = fmt::to_string(speed / 2);
    for (int worker = 1; worker < ranks_ - servers(); ++worker) speeds += fmt::format(",{}", speed);
    add_pair("one at half speed", lengths, sequences, {{"worker.emulate.speed", speeds}});
    // A worker that stands still for a second out of four, at random.
    add_pair("one stalls", lengths, sequences,
             {{"worker.emulate.stall_every_s", "3"},
              {"worker.emulate.stall_for_s", "1"},
              {"worker.emulate.disturbed", "0"}});
  }

  void add_hiding(const std::string& lengths, int64_t sequences) {
    LongtailGroup& group = start_group("transfers hidden", lengths, sequences);
    for (const char* depth : {"0", "1", "2"}) {
      add_run(group, parse_policy("on_demand/hybrid"), first_bound(), fmt::format("prefetch {}", depth), lengths,
              sequences, {{"prefetch.depth", depth}});
    }
  }

  /// The first S that mode hybrid can have.
  std::string first_bound() const {
    const auto bound = std::find_if(options_.staleness.begin(), options_.staleness.end(),
                                    [](const std::string& staleness) { return staleness != kNoBound; });
    return bound == options_.staleness.end() ? "1" : *bound;
  }

  /// Whether mode async has the rule exact in this deck.
  bool async_is_exact() {
    if (!async_is_exact_) {
      const Settings async{
          {"data.path", "not-yet"},     {"train.steps", "1"},           {"mode", "async"},
          {"staleness", "1"},           {"staleness.predict", "false"}, {"staleness.compensation", "0"},
          {"staleness.sync_steps", "0"}};
      async_is_exact_ = decks_.make(async).first.staleness_rule == StalenessRule::exact;
    }
    return *async_is_exact_;
  }

  /// The deck without what a run sets.
  const Deck& base() {
    if (!base_) base_ = decks_.make({{"data.path", "not-yet"}, {"train.steps", "1"}}).first;
    return *base_;
  }
  int servers() { return static_cast<int>(base().servers); }

  const LongtailOptions& options_;
  const DeckMaker& decks_;
  int ranks_;
  std::filesystem::path folder_;
  std::vector<Policy> policies_;
  std::optional<Deck> base_;
  std::optional<bool> async_is_exact_;
  int runs_ = 0;
  LongtailPlan plan_;
};

}  // namespace

DeckMaker::DeckMaker(std::optional<std::filesystem::path> file, std::vector<std::string> arguments)
    : file_(std::move(file)), arguments_(std::move(arguments)) {}

std::pair<Deck, std::string> DeckMaker::make(const Settings& settings) const {
  CLI::App app("hat bench longtail");
  OptionSet options(app);
  Deck deck;
  add_deck_keys(options, deck);
  std::vector<std::string> arguments = arguments_;
  for (const auto& [key, value] : settings) {
    const std::string option = "--" + key;
    const bool is_set = std::any_of(arguments_.begin(), arguments_.end(), [&](const std::string& argument) {
      return argument == option || argument.starts_with(option + "=");
    });
    if (is_set) throw InputError("command line", option, "is what the bench varies or sets itself");
    arguments.push_back(fmt::format("{}={}", option, value));
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    throw command_line_error(app, error);
  }
  options.load(file_);
  resolve_presets(options, deck);
  return {deck, options.effective()};
}

InputError bad_bench_option(const OptionSet& keys, const std::string& option, const std::string& reason) {
  const std::string& place = keys.place(option);
  return {place, place == "command line" ? "--" + option : "bench." + option, reason};
}

LongtailPlan plan_longtail(const LongtailOptions& options, const OptionSet& keys, const DeckMaker& decks, int ranks,
                           const std::filesystem::path& folder) {
  try {
    return Planner(options, decks, ranks, folder).plan();
  } catch (const BadOption& bad) {
    throw bad_bench_option(keys, bad.option, bad.reason);
  }
}

std::vector<int64_t> training_lengths(const LongtailData& data, const Deck& deck) {
  return real_lengths(data.lengths, data.documents, deck, 0);
}

std::vector<int64_t> validation_lengths(const LongtailData& data, const Deck& deck) {
  return real_lengths(data.lengths, kValidationDocuments, deck, 1);
}

}  // namespace hat
