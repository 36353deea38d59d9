#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config_support.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/command_line.hpp"

namespace hat {
namespace {

using test::DeckFile;
using test::message_of;
using test::Train;
using test::Variable;

TEST(Deck, SetsKeysOfSectionsAndOfTheTop) {
  const DeckFile file(
      "mode = \"async\"   # a comment\r\n"
      "servers = 2\n"
      "servers.placement = \"packed\"\n"
      "staleness = \"unbounded\"\n"
      "optimizer = 'muon'\n"
      "model.width = 96\n"
      "resume = true\n"
      "\n"
      "[optimizer]\n"
      "learning_rate = 3e-3\n"
      "[ model ]\n"
      "heads = 3\n"
      "tied = true\n"
      "[data]\n"
      "path = \"a # no comment, b.h5\"  # one\n"
      "long = \"refuse\"\n"
      "[sample]\n"
      "prompt = \"She said \\\"so\\\"\\n\\tthen\"");
  Train train;
  train.load(file.path());
  EXPECT_EQ(train.deck.mode, Mode::async);
  EXPECT_EQ(train.deck.servers, 2);
  EXPECT_EQ(train.deck.placement, Placement::packed);
  EXPECT_EQ(train.deck.staleness, kUnbounded);
  EXPECT_EQ(train.deck.optimizer.kind, OptimizerKind::muon);
  EXPECT_EQ(train.deck.optimizer.learning_rate, 3e-3);
  EXPECT_EQ(train.deck.model.width, 96);
  EXPECT_EQ(train.deck.model.heads, 3);
  EXPECT_TRUE(train.deck.model.tied);
  EXPECT_TRUE(train.deck.resume);
  EXPECT_EQ(train.deck.data.path, "a # no comment, b.h5");
  EXPECT_EQ(train.deck.data.long_documents, LongPolicy::refuse);
  EXPECT_EQ(train.deck.sample.prompt, "She said \"so\"\n\tthen");
  EXPECT_EQ(train.options.origin("mode"), file.path().string());
  EXPECT_EQ(train.options.origin("seed"), "default");
}

TEST(Deck, ReadsListsOverSeveralLines) {
  const DeckFile file("barriers = [ \"layers.0.*\",  # first\n  'head',\n]\n");
  Train train;
  train.load(file.path());
  EXPECT_EQ(train.deck.barriers, (std::vector<std::string>{"layers.0.*", "head"}));
}

TEST(Deck, OneWordIsAListOfOne) {
  const DeckFile file("barriers = \"attention\"\n");
  Train train;
  train.load(file.path());
  EXPECT_EQ(train.deck.barriers, std::vector<std::string>{"attention"});
}

TEST(Precedence, CommandLineBeatsEnvironmentBeatsDeckBeatsDefault) {
  const DeckFile file("seed = 2\nbatch_tokens = 200\nlog.every = 20\n");
  const Variable seed("HAT_SEED", "3");
  const Variable batch("HAT_BATCH_TOKENS", "300");
  Train train;
  train.load(file.path(), {"--seed", "4"});
  EXPECT_EQ(train.deck.seed, 4U);
  EXPECT_EQ(train.options.origin("seed"), "command line");
  EXPECT_EQ(train.deck.batch_tokens, 300);
  EXPECT_EQ(train.options.origin("batch_tokens"), "environment");
  EXPECT_EQ(train.deck.log_every, 20);
  EXPECT_EQ(train.options.origin("log.every"), file.path().string());
  EXPECT_TRUE(train.options.is_default("unit_tokens"));
}

TEST(Precedence, FlagsCanBeSwitchedOff) {
  const DeckFile file("resume = true\nmodel.tied = true\n");
  const Variable tied("HAT_MODEL_TIED", "false");
  Train train;
  train.load(file.path(), {"--no-resume"});
  EXPECT_FALSE(train.deck.resume);
  EXPECT_FALSE(train.deck.model.tied);
}

TEST(CommandLine, FlagsAreTrueOrFalse) {
  const auto message = [](const std::string& argument) -> std::string {
    Train train;
    try {
      refuse_misplaced_flag_values(train.app, {"train", argument});
      train.app.parse("train " + argument);
    } catch (const InputError& error) {
      return error.what();
    } catch (const CLI::ParseError& error) {
      return command_line_error(train.app, error).what();
    }
    return train.deck.trace.enabled ? "true" : "false";
  };
  EXPECT_EQ(message("--trace"), "true");
  EXPECT_EQ(message("--trace=true"), "true");
  EXPECT_EQ(message("--trace=false"), "false");
  EXPECT_EQ(message("--no-trace"), "false");
  for (const std::string value : {"1", "0", "2", "yes", "maybe"}) {
    EXPECT_EQ(message("--trace=" + value), "command line: --trace: must be true or false, not '" + value + "'");
    EXPECT_EQ(message("--no-trace=" + value), "command line: --no-trace: takes no value; write --trace=true or =false");
    const Variable trace("HAT_TRACE", value);
    Train train;
    try {
      train.load(std::nullopt);
      ADD_FAILURE() << value;
    } catch (const InputError& error) {
      EXPECT_EQ(error.what(), "environment: HAT_TRACE: must be true or false, not '" + value + "'");
    }
  }
}

TEST(CommandLine, AFlagAndItsValueAreOneWord) {
  const auto message = [](std::vector<std::string> arguments) -> std::string {
    Train train;
    arguments.insert(arguments.begin(), "train");
    try {
      refuse_misplaced_flag_values(train.app, arguments);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({"--pull.share", "false"}), "command line: --pull.share: write --pull.share=false");
  EXPECT_EQ(message({"--seed", "3", "--trace", "true"}), "command line: --trace: write --trace=true");
  EXPECT_EQ(message({"--no-trace", "false"}), "command line: --no-trace: takes no value; write --trace=true or =false");
  EXPECT_EQ(message({"--trace", "deck.toml"}), "");
  EXPECT_EQ(message({"--trace"}), "");
  EXPECT_EQ(message({"--sample.prompt", "--trace", "true"}), "");  // the prompt
  EXPECT_EQ(message({"--sample.prompt", "true"}), "");
}

TEST(CommandLine, ValuesMayLookLikeNegations) {
  Train train;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"train", "--sample.prompt", "--no-trace=1"},
        {"train", "--sample.prompt=--no-trace=1"},
        {"train", "--no-x=1"},
        {"--no-trace=1"},
        {"train", "--", "--no-trace=1"}}) {
    EXPECT_NO_THROW(refuse_misplaced_flag_values(train.app, arguments)) << arguments.back();
  }
  EXPECT_THROW(refuse_misplaced_flag_values(train.app, {"train", "--sample.prompt", "x", "--no-trace=1"}), InputError);
}

TEST(CommandLine, HelpShowsDefaultAndRangeOfEveryKey) {
  const std::set<std::string> free_text{"output", "data.path", "sample.prompt", "barriers", "sensitivity.noise_block"};
  Train train;
  const std::string help = train.command->help();
  for (const std::string& key : train.options.keys()) {
    const CLI::Option* option = train.command->get_option("--" + key);
    const bool is_flag = option->get_expected_max() == 0;
    if (is_flag) {
      const std::string& text = option->get_description();
      EXPECT_TRUE(text.ends_with("(true or false, default true)") || text.ends_with("(true or false, default false)"))
          << key << ": " << text;
      continue;
    }
    const std::string shown = option->get_type_name() + "=" + option->get_default_str();
    EXPECT_NE(help.find(shown), std::string::npos) << key << ": " << shown;
    EXPECT_NE(option->get_default_str(), "") << key;
    const bool has_range = option->get_type_name().find_first_of("[({") != std::string::npos;
    EXPECT_TRUE(has_range || free_text.contains(key)) << key << ": " << shown;
  }
  EXPECT_NE(help.find("--staleness NAME:[0 - 64] or {unbounded}=1"), std::string::npos);
  EXPECT_NE(train.command->get_option("--pull.share")->get_description().find("default true"), std::string::npos);
}

TEST(CommandLine, ListsEndWithTheirArgument) {
  Train train;
  std::string deck_argument;
  train.command->add_option("deck", deck_argument);
  train.load(std::nullopt, {"--barriers", "attention,head", "run.toml"});
  EXPECT_EQ(train.deck.barriers, (std::vector<std::string>{"attention", "head"}));
  EXPECT_EQ(deck_argument, "run.toml");
}

/// What is wrong with `hat ARGUMENTS`; empty: nothing.
std::string command_line_problem(std::vector<std::string> arguments) {
  Train train;
  train.app.require_subcommand(1);
  std::reverse(arguments.begin(), arguments.end());
  try {
    train.app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return command_line_error(train.app, error).what();
  }
  return "";
}

TEST(CommandLine, AnOptionGivenTwiceIsCalledThat) {
  const auto message = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "train");
    return command_line_problem(std::move(arguments));
  };
  EXPECT_EQ(message({"--output", "a", "--output", "b"}), "command line: --output: given twice");
  EXPECT_EQ(message({"--output=a", "--seed", "3", "--output=b"}), "command line: --output: given twice");
  EXPECT_EQ(message({"--mode", "sync", "--mode", "sync"}), "command line: --mode: given twice");
  EXPECT_EQ(message({"--output="}), "command line: --output: takes a value");
  EXPECT_EQ(message({"--seed"}), "command line: --seed: takes a value");
  EXPECT_EQ(message({"--barriers", "head", "--barriers", "embedding"}), "");  // a list
}

TEST(CommandLine, MisspeltOptionsAndCommandsGetASuggestion) {
  EXPECT_EQ(command_line_problem({"train", "--model.widht", "3"}),
            "command line: --model.widht: unknown option; did you mean '--model.width'?");
  EXPECT_EQ(command_line_problem({"train", "--model.widht=3"}),
            "command line: --model.widht: unknown option; did you mean '--model.width'?");
  EXPECT_EQ(command_line_problem({"trian"}), "command line: trian: unknown command; did you mean 'train'?");
  EXPECT_EQ(command_line_problem({"train", "--mode", "hybird"}),
            "command line: --mode: must be one of sync, hybrid, async, not 'hybird'; did you mean 'hybrid'?");
  EXPECT_EQ(command_line_problem({"train", "--seed", "-1"}),
            "command line: --seed: must be an integer of at least 0, not '-1'");
  EXPECT_NE(command_line_problem({"train", "--seed"}), "");
  EXPECT_NE(command_line_problem({}), "");
  EXPECT_EQ(command_line_problem({"train", "--seed", "1"}), "");
}

struct BadDeck {
  const char* name;
  const char* text;
  const char* expected;  // behind "<file>: "
};

class BadDecks : public testing::TestWithParam<BadDeck> {
 protected:
  void SetUp() override {  // what ctest sets for all tests would stand before the decks
    for (const char* name : {"HAT_DEVICE", "HAT_PRECISION"}) unsetenv(name);
  }
};

TEST_P(BadDecks, GiveOneLineWithFileKeyAndReason) {
  unsetenv("HAT_DEVICE");  // NOLINT(concurrency-mt-unsafe): what tests are run with would win over the deck
  std::string path;
  const std::string message = message_of(GetParam().text, &path);
  EXPECT_EQ(message, path + ": " + GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Text, BadDecks,
    testing::Values(BadDeck{"empty", "", "the deck has no keys"},
                    BadDeck{"only_comments", "# nothing\n\n", "the deck has no keys"},
                    BadDeck{"twice", "seed = 1\nmode = \"sync\"\nseed = 2\n",
                            "seed: the key is set twice, first in line 1 (line 3)"},
                    BadDeck{"twice_by_section", "model.width = 8\n[model]\nwidth = 8\n",
                            "model.width: the key is set twice, first in line 1 (line 3)"},
                    BadDeck{"no_value", "seed =\n", "seed: expected a value (line 1)"},
                    BadDeck{"no_equals", "seed 5\n", "seed: expected '=' and a value (line 1)"},
                    BadDeck{"short_line", "seed = 1\na\n", "a: expected '=' and a value (line 2)"},
                    BadDeck{"two_values", "seed = 1 2\n", "seed: unexpected '2' behind the value (line 1)"},
                    BadDeck{"open_string", "output = \"runs\n", "output: the string is not closed by '\"' (line 1)"},
                    BadDeck{"open_literal", "output = 'runs", "output: the string is not closed by \"'\" (line 1)"},
                    BadDeck{"escape", "output = \"a\\q\"\n",
                            "output: unknown escape in a string; '...' takes backslashes as they are (line 1)"},
                    BadDeck{"open_list", "barriers = [\"all\"\n\n", "barriers: the list is not closed by ']' (line 3)"},
                    BadDeck{"list_comma", "barriers = [\"a\" \"b\"]\n",
                            "barriers: expected ',' or ']' in the list, found '\"b\"]' (line 1)"},
                    BadDeck{"open_section", "[model\nwidth = 8\n", "section '[model' is not closed by ']' (line 1)"},
                    BadDeck{"table", "[[model]]\nwidth = 8\n",
                            "expected a key or a [section], found '[model]]' (line 1)"},
                    BadDeck{"binary", "seed = 1\n\x01\x02\x03", "is not a text file"},
                    BadDeck{"hdf5", "\x89HDF\r\n\x1a\n", "is an HDF5 file, not a deck file"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Keys, BadDecks,
    testing::Values(
        BadDeck{"misspelt", "[model]\nwidht = 8\n", "model.widht: unknown key; did you mean 'model.width'? (line 2)"},
        BadDeck{"misplaced", "learning_rate = 1\n",
                "learning_rate: unknown key; did you mean 'optimizer.learning_rate'? (line 1)"},
        BadDeck{"unknown", "[quantum]\nfoam = 8\n", "quantum.foam: unknown key (line 2)"},
        BadDeck{"word_for_integer", "batch_tokens = \"many\"\n",
                "batch_tokens: must be an integer from 0 to 1000000000, not 'many' (line 1)"},
        BadDeck{"fraction_for_integer", "servers = 1.5\n",
                "servers: must be an integer from 1 to 65536, not '1.5' (line 1)"},
        BadDeck{"true_for_integer", "servers = true\n",
                "servers: must be an integer from 1 to 65536, not 'true' (line 1)"},
        BadDeck{"integer_for_flag", "resume = 7\n", "resume: must be true or false, not '7' (line 1)"},
        BadDeck{"list_for_integer", "seed = [1, 2]\n", "seed: takes one value, not a list (line 1)"},
        BadDeck{"list_for_flag", "resume = [true]\n", "resume: takes one value, not a list (line 1)"},
        BadDeck{"empty_list", "barriers = []\n", "barriers: the list is empty (line 1)"},
        BadDeck{"empty_number", "seed = \"\"\n", "seed: the value is empty (line 1)"},
        BadDeck{"negative", "model.layers = -4\n",
                "model.layers: must be an integer from 1 to 10000, not '-4' (line 1)"},
        BadDeck{"zero", "servers = 0\n", "servers: must be an integer from 1 to 65536, not '0' (line 1)"},
        BadDeck{"overflow", "seed = 99999999999999999999\n",
                "seed: must be an integer of at least 0, not '99999999999999999999' (line 1)"},
        BadDeck{"nan", "optimizer.learning_rate = nan\n",
                "optimizer.learning_rate: must be a number from 0 to 1000, not 'nan' (line 1)"},
        BadDeck{"infinite", "timeout_s = inf\n",
                "timeout_s: must be a number from 0 to 1000000 (above the lower end), not 'inf' (line 1)"},
        BadDeck{"beta_of_one", "optimizer.beta2 = 1\n",
                "optimizer.beta2: must be a number from 0 to 1 (below the upper end), not '1' (line 1)"},
        BadDeck{"rope_base_of_one", "model.rope_base = 1\n",
                "model.rope_base: must be a number from 1 to 1000000000000 (above the lower end), not '1' (line 1)"},
        BadDeck{"number_for_enum", "mode = 1\n", "mode: must be one of sync, hybrid, async, not '1' (line 1)"},
        BadDeck{"misspelt_enum", "mode = \"asnyc\"\n",
                "mode: must be one of sync, hybrid, async, not 'asnyc'; did you mean 'async'? (line 1)"},
        BadDeck{"negative_staleness", "staleness = -1\n",
                "staleness: must be an integer from 0 to 64 or unbounded, not '-1' (line 1)"},
        BadDeck{"misspelt_staleness", "staleness = \"unbound\"\n",
                "staleness: must be an integer from 0 to 64 or unbounded, not 'unbound'; did you mean 'unbounded'? "
                "(line 1)"},
        BadDeck{"device", "device = \"tpu\"\n", "device: tpu not in {auto,cpu,cuda} (line 1)"}),
    [](const auto& info) { return info.param.name; });

TEST(Precedence, TheNameOfADeckIsJustAName) {
  const DeckFile folder("");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.folder());
  const Variable seed("HAT_SEED", "3");
  for (const std::string name : {"default", "environment", "command line"}) {
    std::ofstream(name) << "seed = 2\nclip = \"block\"\nmode = \"sync\"\n";
    Train train;
    train.load(std::filesystem::path(name), {"--log.every", "7"});
    EXPECT_EQ(train.deck.seed, 3U) << name;
    EXPECT_EQ(train.options.nearness("clip"), OptionSet::Nearness::deck) << name;
    EXPECT_EQ(train.options.nearness("seed"), OptionSet::Nearness::environment) << name;
    EXPECT_EQ(train.options.nearness("log.every"), OptionSet::Nearness::command_line) << name;
    EXPECT_TRUE(train.options.is_default("staleness")) << name;
    EXPECT_EQ(train.options.name("clip"), "clip") << name;
    train.options.set("clip", "none", "environment");
    EXPECT_EQ(train.options.nearness("clip"), OptionSet::Nearness::set) << name;
  }
  std::filesystem::current_path(before);
}

TEST(Environment, UnknownVariablesAreRefused) {
  const Variable misspelt("HAT_MODEL_WIDHT", "8");
  Train train;
  try {
    train.load(std::nullopt);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "environment: HAT_MODEL_WIDHT: unknown variable; did you mean 'HAT_MODEL_WIDTH'?");
  }
}

TEST(Environment, BadValuesNameTheVariable) {
  for (const auto& [value, reason] : {std::pair{"x", "must be an integer of at least 0, not 'x'"},
                                      std::pair{"", "is empty; unset it to use the default"}}) {
    const Variable seed("HAT_SEED", value);
    Train train;
    try {
      train.load(std::nullopt);
      FAIL();
    } catch (const InputError& error) {
      EXPECT_EQ(error.what(), std::string("environment: HAT_SEED: ") + reason);
    }
  }
}

TEST(Sections, KeysOfOtherCommandsArePassedOverAndOwnOnesAreFound) {
  Train train;
  CLI::App* command = train.app.add_subcommand("tokenize");
  std::string output = "dataset.h5";
  OptionSet tokenize(*command, "tokenize");
  tokenize.add("output", output, "where to");
  const DeckFile file("seed = 9\n[tokenize]\noutput = \"t.h5\"\n");
  const Variable seed("HAT_SEED", "5");
  {
    const Variable variable("HAT_TOKENIZE_OUTPUT", "e.h5");
    train.load(file.path());
    EXPECT_EQ(train.deck.seed, 5U);
    EXPECT_EQ(train.deck.output, "hat-run");
    tokenize.load(file.path());
    EXPECT_EQ(output, "e.h5");
  }
  EXPECT_EQ(tokenize.effective(), "\n[tokenize]\noutput = \"e.h5\"\n");
}

TEST(Effective, ReproducesItself) {
  const DeckFile file(
      "mode = \"async\"\nstaleness = \"unbounded\"\nseed = 123456789012345678\ntimeout_s = 0.1\n"
      "optimizer = \"muon\"\noptimizer.learning_rate = 0.30000000000000004\ndata.path = 'a \"b\" \\ c # d.h5'\n"
      "train.tokens = 7\nmodel.tied = true\nsample.prompt = \"Zwölf\\n\\u0007, [x]\"\ndispatch = \"static\"\n");
  Train first;
  first.load(file.path());
  resolve_presets(first.options, first.deck);
  const std::string effective = first.options.effective();
  const DeckFile written(effective);
  Train second;
  second.load(written.path());
  resolve_presets(second.options, second.deck);
  EXPECT_EQ(second.options.effective(), effective);
  EXPECT_EQ(second.deck.staleness, kUnbounded);
  EXPECT_EQ(second.deck.seed, 123456789012345678U);
  EXPECT_EQ(second.deck.timeout_s, 0.1);
  EXPECT_EQ(second.deck.optimizer.learning_rate, 0.30000000000000004);
  EXPECT_EQ(second.deck.data.path, "a \"b\" \\ c # d.h5");
  EXPECT_EQ(second.deck.sample.prompt, "Zwölf\n\a, [x]");
  EXPECT_EQ(second.deck.dispatch, Dispatch::static_);
  EXPECT_EQ(second.deck.staleness_rule, StalenessRule::freshest);
  for (const std::string& key : first.options.keys()) {
    const bool is_of_one_start = key.starts_with("fault.");
    EXPECT_EQ(second.options.is_default(key), is_of_one_start) << key;
  }
}

TEST(DeckPath, MissingFoldersAndUnreadableFilesAreRefused) {
  const DeckFile file("seed = 1\n");
  const auto message = [](const std::filesystem::path& path) -> std::string {
    Train train;
    try {
      train.load(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string missing = (file.folder() / "none.toml").string();
  EXPECT_EQ(message(missing), missing + ": no such deck file");
  EXPECT_EQ(message(file.folder()), file.folder().string() + ": is a folder, not a deck file");
  std::filesystem::resize_file(file.path(), 2 << 20);
  EXPECT_EQ(message(file.path()), file.path().string() + ": is too large for a deck file (more than 1 MiB)");
}

TEST(Checks, AreStrictAboutNumbers) {
  EXPECT_EQ(integer_in(0, 10)("7"), "");
  EXPECT_EQ(integer_in(0, 10)("+7"), "");
  EXPECT_NE(integer_in(0, 10)("0x7"), "");
  EXPECT_NE(integer_in(0, 10)("007"), "");  // CLI11 would take it for octal
  EXPECT_NE(integer_in(-9, 10)("-07"), "");
  EXPECT_EQ(integer_in(0, 10)("0"), "");
  EXPECT_NE(integer_in(0, 10)("7 "), "");
  EXPECT_NE(integer_in(0, 10)("1e1"), "");
  EXPECT_NE(integer_in(0, 10)(""), "");
  EXPECT_NE(integer_in(0, 10)("11"), "");
  EXPECT_EQ(real_in(0, 1)("1"), "");
  EXPECT_EQ(real_in(0, 1)("2.5e-1"), "");
  EXPECT_NE(real_in(0, 1, Ends::without_least)("0"), "");
  EXPECT_NE(real_in(0, 1, Ends::without_most)("1.0"), "");
  EXPECT_NE(real_in(0, 1, Ends::neither)("0"), "");
  EXPECT_EQ(real_in(0, 1, Ends::neither)("0.5"), "");
  EXPECT_NE(real_in(0, 1, Ends::neither)("1"), "");
  EXPECT_NE(real_in(0, 1)("0.5x"), "");
  EXPECT_NE(real_in(0, 1)("-nan"), "");
}

}  // namespace
}  // namespace hat
