#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config_support.hpp"

namespace hat {
namespace {

using test::answer_to;
using test::DeckFile;
using test::kSound;
using test::message_of;
using test::Train;
using test::Variable;

struct BadCombination {
  const char* name;
  const char* text;  // beside kSound
  const char* key;
  const char* part;  // of the reason
};

class BadCombinations : public testing::TestWithParam<BadCombination> {};

TEST_P(BadCombinations, AreRefusedNamingTheKey) {
  ASSERT_EQ(message_of(kSound), "");
  std::string path;
  const std::string message = message_of(kSound + GetParam().text, &path);
  EXPECT_TRUE(message.starts_with(path + ": " + GetParam().key + ": ")) << message;
  EXPECT_NE(message.find(GetParam().part), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadCombinations,
    testing::Values(
        BadCombination{"sync_stale", "mode = \"sync\"\nstaleness = 1\n", "staleness", "mode sync has staleness 0"},
        BadCombination{"sync_unbounded", "mode = \"sync\"\nstaleness = \"unbounded\"\n", "staleness", "mode sync"},
        BadCombination{"hybrid_unbounded", "staleness = \"unbounded\"\n", "staleness", "unbounded needs mode async"},
        BadCombination{"hybrid_global", "clip = \"global\"\n", "clip", "wait for the whole step"},
        BadCombination{"async_global", "mode = \"async\"\nclip = \"global\"\n", "clip", "wait for the whole step"},
        BadCombination{"async_barriers", "mode = \"async\"\nbarriers = \"upper\"\n", "barriers", "mode hybrid"},
        BadCombination{"unbounded_barriers", "mode = \"async\"\nstaleness = \"unbounded\"\nbarriers = \"all\"\n",
                       "barriers", "unbounded"},
        BadCombination{"unbounded_exact", "mode = \"async\"\nstaleness = \"unbounded\"\nstaleness.rule = \"exact\"\n",
                       "staleness.rule", "freshest"},
        BadCombination{"deterministic_unbounded", "mode = \"async\"\nstaleness = \"unbounded\"\ndeterministic = true\n",
                       "deterministic", "timing"},
        BadCombination{"deterministic_freshest",
                       "mode = \"sync\"\ndeterministic = true\nstaleness.rule = \"freshest\"\n", "staleness.rule",
                       "exact"},
        BadCombination{"barrier_name", "barriers = \"Head!\"\n", "barriers", "'Head!'"},
        BadCombination{"barrier_all_and", "barriers = [\"all\", \"head\"]\n", "barriers", "'all' stands alone"},
        BadCombination{"sensitivity_sync", "mode = \"sync\"\nbarriers = \"sensitivity\"\n", "barriers",
                       "'sensitivity' needs mode hybrid"},
        BadCombination{"sensitivity_never_late", "staleness = 0\nbarriers = [\"sensitivity\", \"head\"]\n", "barriers",
                       "nothing is late"},
        BadCombination{"sensitivity_over", "sensitivity.over = \"steps\"\n", "sensitivity.over", "measure article"},
        BadCombination{"noise_without_scale", "sensitivity.noise_block = \"head\"\n", "sensitivity.noise_block",
                       "together"},
        BadCombination{"noise_never", "sensitivity.noise_block = \"head\"\nsensitivity.noise_scale = 1\n",
                       "sensitivity.noise_to", "0 is not behind noise_from, 0"},
        BadCombination{"threshold_unused", "sensitivity.threshold = 1.2\n", "sensitivity.threshold",
                       "changes nothing without sensitivity among the barriers"},
        BadCombination{"window_only_recorded", "sensitivity.record = true\nsensitivity.window = 8\n",
                       "sensitivity.window", "changes nothing without sensitivity among the barriers"},
        BadCombination{"hysteresis_unused", "sensitivity.hysteresis = 0.2\n", "sensitivity.hysteresis", "without"},
        BadCombination{"measure_unused", "sensitivity.measure = \"pairwise\"\n", "sensitivity.measure",
                       "or sensitivity.record"},
        BadCombination{"noise_from_unused", "sensitivity.noise_from = 3\n", "sensitivity.noise_from",
                       "without sensitivity.noise_block"},
        BadCombination{"noise_to_unused", "sensitivity.noise_to = 3\n", "sensitivity.noise_to",
                       "without sensitivity.noise_block"},
        BadCombination{"limit_bounded", "mode = \"async\"\nstaleness.limit = 3\n", "staleness.limit",
                       "for staleness unbounded"},
        BadCombination{"limit_s_hybrid", "staleness.limit_s = 0.5\n", "staleness.limit_s", "for staleness unbounded"},
        BadCombination{"over_no_limit",
                       "mode = \"async\"\nstaleness = \"unbounded\"\nstaleness.over_limit = \"scale\"\n",
                       "staleness.over_limit", "there is no staleness.limit"},
        BadCombination{"heads", "model.heads = 5\n", "model.heads", "5 heads do not divide a width of 128"},
        BadCombination{"odd_head", "model.width = 12\n", "model.heads", "odd size 3"},
        BadCombination{"kv_heads", "model.kv_heads = 3\n", "model.kv_heads", "3 do not divide 4 heads"},
        BadCombination{"kv_heads_many", "model.kv_heads = 8\n", "model.kv_heads", "8 do not divide 4 heads"},
        BadCombination{"gpt2_kv", "model.family = \"gpt2\"\nmodel.kv_heads = 2\n", "model.kv_heads", "gpt2"},
        BadCombination{"unit", "unit_tokens = 5000\n", "unit_tokens", "more than the 4096"},
        BadCombination{"batch_zero", "batch_tokens = 0\n", "batch_tokens", "0 needs batch_sequences"},
        BadCombination{"two_batches", "batch_tokens = 100\nbatch_sequences = 4\n", "batch_sequences", "both set"},
        BadCombination{"no_device_to_cut_for", "split = \"independent\"\n", "shard.flops", "FLOP/s"},
        BadCombination{"rule_for_nothing", "shard.rule = \"article\"\n", "shard.rule", "no meaning"},
        BadCombination{"cut_for_nothing", "shard.flops = 1e9\n", "shard.flops", "no meaning"},
        BadCombination{"two_ends", "train.epochs = 2\n", "train.steps", "exactly one"},
        BadCombination{"tf32", "device = \"cpu\"\n[worker]\ntf32 = true\n", "worker.tf32",
                       "is for CUDA devices, and device is cpu"},
        BadCombination{"predict_sync", "mode = \"sync\"\nstaleness.predict = true\n", "staleness.predict",
                       "nothing is ever late with mode sync"},
        BadCombination{"predict_timely", "staleness = 0\nstaleness.predict = true\n", "staleness.predict",
                       "staleness 0"},
        BadCombination{"predict_freshest", "mode = \"async\"\nstaleness.predict = true\n", "staleness.predict",
                       "needs staleness.rule exact"},
        BadCombination{"predict_unbounded", "mode = \"async\"\nstaleness = \"unbounded\"\nstaleness.predict = true\n",
                       "staleness.predict", "a bound"},
        BadCombination{"sync_steps_sync", "mode = \"sync\"\nstaleness.sync_steps = 5\n", "staleness.sync_steps",
                       "mode sync"},
        BadCombination{"sync_steps_unbounded",
                       "mode = \"async\"\nstaleness = \"unbounded\"\nstaleness.sync_steps = 5\n",
                       "staleness.sync_steps", "no steps to wait for"},
        BadCombination{"compensation_freshest", "mode = \"async\"\nstaleness.compensation = 1\n",
                       "staleness.compensation", "at the same weights"},
        BadCombination{"compensation_negative", "staleness.compensation = -1\n", "staleness.compensation", "from 0"},
        BadCombination{"momentum_all", "barriers = \"all\"\noptimizer.momentum_rule = \"staleness\"\n",
                       "optimizer.momentum_rule", "barriers all"},
        BadCombination{"output", "output = \"\"\n", "output", "empty"}),
    [](const auto& info) { return info.param.name; });

TEST(Combination, NeedsAnEndAndData) {
  EXPECT_NE(message_of("data.path = \"d.h5\"\n").find("train.steps: set exactly one"), std::string::npos);
  EXPECT_NE(message_of("train.steps = 1\n").find("data.path: is not set"), std::string::npos);
}

TEST(Combination, ErrorsNameWhereTheValueCameFrom) {
  const DeckFile file(kSound);
  Train train;
  train.load(file.path(), {"--clip", "global"});
  try {
    resolve_presets(train.options, train.deck);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("command line: --clip: ")) << error.what();
  }
}

TEST(Combination, ErrorsNameTheKeyAsItIsWrittenThere) {
  const DeckFile file(kSound);
  const Variable clip("HAT_CLIP", "global");
  const auto message = [](const std::optional<std::filesystem::path>& deck_file) -> std::string {
    Train train;
    train.load(deck_file);
    try {
      resolve_presets(train.options, train.deck);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(message(file.path()).starts_with("environment: HAT_CLIP: ")) << message(file.path());
  unsetenv("HAT_CLIP");
  EXPECT_TRUE(message(std::nullopt).starts_with("command line: --train.steps: ")) << message(std::nullopt);
}

TEST(Combination, ErrorsNameThePlaceOfTheCause) {
  // Keys that nobody has set are not in the deck.
  EXPECT_EQ(answer_to(kSound, {"--split", "independent"}),
            "command line: --shard.flops: split = independent cuts for a device: give its FLOP/s");
  EXPECT_EQ(answer_to(kSound, {"--deterministic", "--mode", "async"}),
            "command line: --staleness.rule: deterministic needs the rule exact");
  EXPECT_EQ(answer_to(kSound + "mode = \"async\"\n", {"--deterministic"}),
            "command line: --staleness.rule: deterministic needs the rule exact");
  EXPECT_EQ(answer_to(kSound + "mode = \"async\"\ndeterministic = true\n", {}),
            "DECK: staleness.rule: deterministic needs the rule exact");
  // Those that are, may be so rightly.
  EXPECT_EQ(answer_to(kSound + "length_scale = 16\n", {"--worker.emulate.speed", "0"}),
            "DECK: length_scale: changes nothing without worker.emulate.speed (now by --worker.emulate.speed, command "
            "line)");
  EXPECT_EQ(answer_to(kSound + "model.heads = 8\n", {"--model.width", "100"}),
            "DECK: model.heads: 8 heads do not divide a width of 100 (now by --model.width, command line)");
}

TEST(Combination, DefaultsAreNamedAtThePlaceOfTheirCause) {
  const std::vector<std::string> fast{"--worker.emulate.speed", "1e9"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), fast.begin(), fast.end());
    return answer_to(kSound, more);
  };
  const std::string prefix = "command line: --worker.emulate.";
  EXPECT_EQ(with({"--worker.emulate.stall_every_s", "1"}),
            prefix + "stall_for_s: must be above 0 where there are stalls");
  EXPECT_TRUE(with({"--worker.emulate.slow_every_s", "1"}).starts_with(prefix + "slow_for_s: must be above 0"));
  EXPECT_EQ(with({"--worker.emulate.slow_every_s", "1", "--worker.emulate.slow_for_s", "1"}),
            prefix + "slow_factor: must be above 1 where phases are slow");
  EXPECT_EQ(answer_to(kSound, {"--sensitivity.noise_scale", "1"}),
            "command line: --sensitivity.noise_block: set noise_block and noise_scale together");
  EXPECT_EQ(answer_to("data.path = \"d.h5\"\n", {"--train.tokens", "9", "--train.epochs", "1"}),
            "command line: --train.steps: set exactly one of train.steps, train.tokens and train.epochs (now: 2)");
}

TEST(Combination, OnlyMessagesAreLostAndOnlyWritesFail) {
  const std::string prefix = "command line: --fault.action: is of ";
  for (const char* action : {"drop", "duplicate"}) {
    EXPECT_TRUE(answer_to(kSound, {"--fault.at", "log", "--fault.action", action}).starts_with(prefix + "messages"));
    for (const char* at : {"push", "lease_request", "lease", "report", "commit", "control"}) {
      EXPECT_EQ(answer_to(kSound, {"--fault.at", at, "--fault.action", action}), "");
    }
  }
  for (const char* action : {"fail", "shorten"}) {
    EXPECT_TRUE(answer_to(kSound, {"--fault.at", "push", "--fault.action", action}).starts_with(prefix + "writes"));
    EXPECT_TRUE(answer_to(kSound, {"--fault.at", "update", "--fault.action", action}).starts_with(prefix + "writes"));
    for (const char* at : {"log", "checkpoint", "complete", "metrics"}) {
      EXPECT_EQ(answer_to(kSound, {"--fault.at", at, "--fault.action", action}), "");
    }
  }
  EXPECT_EQ(answer_to(kSound, {"--fault.at", "lease", "--fault.action", "kill"}), "");
}

// Checks that know only values: of ranks, the dataset, the memory.
TEST(KeyErrors, NameThePlaceOfTheKey) {
  const DeckFile file(kSound + "servers = 2\nmodel.layers = 3\n");
  const Variable threads("HAT_WORKER_THREADS", "3");
  Train train;
  train.load(file.path(), {"--barriers", "head", "--model.width", "64"});
  const auto message = [&](const KeyError& bad) { return std::string(train.options.error(bad).what()); };
  EXPECT_STREQ(KeyError("servers", "are too many").what(), "servers: are too many");
  EXPECT_EQ(message({"servers", "are too many"}), file.path().string() + ": servers: are too many");
  EXPECT_EQ(message({"barriers", "match nothing"}), "command line: --barriers: match nothing");
  EXPECT_EQ(message({"worker.threads", "3 are more"}), "environment: HAT_WORKER_THREADS: 3 are more");
  EXPECT_EQ(message({"unit_tokens", "too few", {"barriers"}}), "command line: --unit_tokens: too few");
  EXPECT_EQ(message({"servers", "no", {"model.width", "nothing.known"}}),
            file.path().string() + ": servers: no (now by --model.width, command line)");
  EXPECT_EQ(message({"model", "is too large"}), "command line: model: is too large")
      << "the nearest key of the section";
  EXPECT_EQ(message({"quantum.foam", "is none"}), "quantum.foam: is none");
  const auto fail = []() -> int { throw KeyError("barriers", "match nothing"); };
  EXPECT_THROW(train.options.naming_places(fail), InputError);
  EXPECT_EQ(train.options.naming_places([] { return 7; }), 7);
}

TEST(KeyErrors, OfACommandWithASectionNameItsOption) {
  CLI::App app;
  OptionSet keys(app, "eval");
  int64_t tokens = 0;
  keys.add("tokens", tokens, "");
  app.parse("--tokens 1");
  Train train;  // whose keys the deck has
  keys.load(DeckFile(kSound).path());
  EXPECT_STREQ(keys.error(KeyError("eval.tokens", "too few")).what(), "command line: --tokens: too few");
  EXPECT_STREQ(keys.error("tokens", "too few").what(), "command line: --tokens: too few");
}

TEST(KeyErrors, OfDefaultsOfASectionAreNotBlamedOnADeck) {
  CLI::App app;
  OptionSet keys(app, "bench");
  int64_t steps = 40;
  keys.add("steps", steps, "");
  Train train;  // whose keys the deck has
  keys.load(DeckFile(kSound).path());
  EXPECT_STREQ(keys.error("steps", "are too many").what(), "command line: --steps: are too many");
}

TEST(Combination, AnotherModeThanAPinnedOneNamesAllOptionsThatAreMissing) {
  Train hybrid;
  const DeckFile file(kSound + "[staleness]\npredict = true\nsync_steps = 5\n");
  hybrid.load(file.path());
  resolve_presets(hybrid.options, hybrid.deck);
  const std::string pinned = hybrid.options.effective();
  EXPECT_EQ(answer_to(pinned, {"--mode", "sync"}),
            "command line: --mode: does not go with settings of the deck or the environment; pass also --staleness 0 "
            "--staleness.predict=false --staleness.sync_steps 0");
  EXPECT_EQ(answer_to(pinned, {"--mode", "sync", "--staleness", "0", "--staleness.predict=false",
                               "--staleness.sync_steps", "0"}),
            "");
  EXPECT_EQ(
      answer_to(pinned, {"--mode", "async"}),
      "command line: --mode: does not go with settings of the deck or the environment; pass also --barriers none");
  EXPECT_EQ(answer_to(pinned, {"--mode", "async", "--barriers", "none"}), "");
  const std::string unbounded = answer_to(pinned, {"--mode", "async", "--staleness", "unbounded"});
  EXPECT_NE(unbounded.find("--barriers none --staleness.rule freshest"), std::string::npos) << unbounded;
  Train sync;
  sync.load(DeckFile(kSound + "mode = \"sync\"\n").path());
  resolve_presets(sync.options, sync.deck);
  EXPECT_EQ(
      answer_to(sync.options.effective(), {"--mode", "hybrid"}),
      "command line: --mode: does not go with settings of the deck or the environment; pass also --clip previous");
}

TEST(Presets, TheNearestLengthOfTheRunCounts) {
  const DeckFile file(kSound);  // train.steps = 5
  Train tokens;
  tokens.load(file.path(), {"--train.tokens", "100"});
  resolve_presets(tokens.options, tokens.deck);
  EXPECT_EQ(tokens.deck.train.steps, 0);
  EXPECT_EQ(tokens.deck.train.tokens, 100);
  Train both;
  both.load(file.path(), {"--train.tokens", "100", "--train.epochs", "2"});
  EXPECT_THROW(resolve_presets(both.options, both.deck), InputError);
  Train deck_only;
  deck_only.load(file.path());
  resolve_presets(deck_only.options, deck_only.deck);
  EXPECT_EQ(deck_only.deck.train.steps, 5);
}

TEST(Presets, OfBatchKeysTheNearestCounts) {
  struct Case {
    const char* deck;
    const char* variable;  // and value, or empty
    const char* value;
    std::vector<std::string> arguments;
    int64_t tokens;
    int64_t sequences;
  };
  for (const Case& c : {Case{"batch_tokens = 500\n", "", "", {"--batch_sequences", "4"}, 0, 4},
                        Case{"batch_sequences = 4\n", "", "", {"--batch_tokens", "500"}, 500, 0},
                        Case{"batch_sequences = 4\n", "HAT_BATCH_TOKENS", "500", {}, 500, 0},
                        Case{"", "HAT_BATCH_TOKENS", "500", {"--batch_sequences", "4"}, 0, 4},
                        Case{"batch_sequences = 4\n", "", "", {"--batch_tokens", "0"}, 0, 4},
                        Case{"batch_tokens = 500\n", "", "", {"--batch_sequences", "0"}, 500, 0},
                        Case{"batch_sequences = 4\n", "", "", {}, 0, 4}, Case{"", "", "", {}, 4096, 0}}) {
    const DeckFile file(kSound + c.deck);
    std::optional<Variable> variable;
    if (*c.variable != '\0') variable.emplace(c.variable, c.value);
    Train train;
    train.load(file.path(), c.arguments);
    resolve_presets(train.options, train.deck);
    EXPECT_EQ(train.deck.batch_tokens, c.tokens) << c.deck << c.variable;
    EXPECT_EQ(train.deck.cutting.batch_sequences, c.sequences) << c.deck << c.variable;
  }
  const DeckFile file(kSound);
  Train both;
  both.load(file.path(), {"--batch_tokens", "500", "--batch_sequences", "4"});
  EXPECT_THROW(resolve_presets(both.options, both.deck), InputError);
}

TEST(Presets, FollowTheMode) {
  struct Case {
    const char* text;
    int64_t staleness;
    StalenessRule rule;
    const char* barrier;
    ClipRule clip;
  };
  for (const Case& expected :
       {Case{"mode = \"sync\"\n", 0, StalenessRule::exact, "none", ClipRule::global},
        Case{"mode = \"hybrid\"\n", 1, StalenessRule::exact, "upper", ClipRule::previous},
        Case{"mode = \"async\"\n", 1, StalenessRule::freshest, "none", ClipRule::previous},
        Case{"mode = \"async\"\nstaleness = 3\nstaleness.rule = \"exact\"\nclip = \"block\"\n", 3, StalenessRule::exact,
             "none", ClipRule::block},
        Case{"mode = \"async\"\nstaleness = \"unbounded\"\nclip = \"global\"\n", kUnbounded, StalenessRule::freshest,
             "none", ClipRule::global},
        Case{"mode = \"sync\"\nbarriers = \"all\"\n", 0, StalenessRule::exact, "all", ClipRule::global}}) {
    const DeckFile file(kSound + expected.text);
    Train train;
    train.load(file.path());
    resolve_presets(train.options, train.deck);
    EXPECT_EQ(train.deck.staleness, expected.staleness) << expected.text;
    EXPECT_EQ(train.deck.staleness_rule, expected.rule) << expected.text;
    EXPECT_EQ(train.deck.barriers, std::vector<std::string>{expected.barrier}) << expected.text;
    EXPECT_EQ(train.deck.clip.rule, expected.clip) << expected.text;
  }
}

}  // namespace
}  // namespace hat
