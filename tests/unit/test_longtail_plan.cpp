#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "commands/longtail_plan.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/core/error.hpp"

namespace hat {
namespace {

const std::string kDeck = HAT_SOURCE_DIR "/inputs/bench_longtail.toml";

/// hat bench longtail as far as its plan goes.
struct Bench {
  CLI::App train{"train"};  // whose keys a deck and the environment may have as well
  Deck deck;
  OptionSet train_keys{train};
  CLI::App app{"bench"};
  OptionSet keys{app, "bench"};
  LongtailOptions options;

  Bench() {
    add_deck_keys(train_keys, deck);
    keys.add("policies", options.policies, "");
    keys.add("staleness", options.staleness, "");
    keys.add("sequences", options.sequences, "");
    keys.add("steps", options.steps, "");
    keys.add("text", options.text, "");
    keys.add("keep", options.keep, "");
    app.allow_extras();
  }

  LongtailPlan plan(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    const DeckMaker decks(app.remaining(), keys);
    keys.load(decks.deck_file());
    return plan_longtail(options, keys, decks, /*ranks=*/3, "folder");
  }
};

std::string message_of(const std::vector<std::string>& arguments) {
  try {
    Bench().plan(arguments);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(LongtailPlan, ARowHasTheSameTextWhicheverOthersAreAskedFor) {
  const LongtailPlan alone = Bench().plan({kDeck, "--sequences", "1"});
  const LongtailPlan together = Bench().plan({kDeck, "--sequences", "4,1"});
  EXPECT_EQ(alone.groups.at(0).runs.at(0).deck.data.path, together.groups.at(1).runs.at(0).deck.data.path);
  EXPECT_EQ(alone.data.size(), 1U);
  ASSERT_EQ(together.data.size(), 2U);
  EXPECT_NE(together.data[0].file, together.data[1].file);
  for (const LongtailData& data : together.data) {
    if (data.file == alone.data[0].file) {
      EXPECT_EQ(data.documents, alone.data[0].documents);
    }
  }
}

TEST(LongtailPlan, TakesDeckKeysBeforeAndBehindTheDeck) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--model.width", "48", kDeck}, {kDeck, "--model.width", "48"}}) {
    EXPECT_EQ(Bench().plan(arguments).groups[0].runs[0].deck.model.width, 48);
  }
}

TEST(LongtailPlan, ErrorsNameWhatTheUserWrote) {
  EXPECT_TRUE(message_of({}).starts_with("command line: deck: is needed")) << message_of({});
  EXPECT_EQ(message_of({kDeck, "--policies", "on_demand/foo"}),
            "command line: --policies: mode: must be one of sync, hybrid, async, not 'foo'");
  EXPECT_TRUE(message_of({kDeck, "--staleness", "99"}).starts_with("command line: staleness: must be"));
  EXPECT_EQ(message_of({kDeck, "--batch_sequences=3"}),
            "command line: --batch_sequences: is what the bench varies or sets itself (--sequences)");
  EXPECT_TRUE(message_of({kDeck, "--model.widht", "3"}).starts_with("command line: --model.widht: unknown option"));
  EXPECT_EQ(message_of({kDeck, "--precision=auto", "--staleness.predict=true"}), "");
}

TEST(LongtailPlan, RefusesVariablesOfKeysThatItSets) {
  for (const char* name : {"HAT_MODE", "HAT_STALENESS", "HAT_OUTPUT", "HAT_TRAIN_TOKENS", "HAT_BATCH_TOKENS"}) {
    setenv(name, std::string(name) == "HAT_MODE" ? "sync" : "3", 1);
    const std::string message = message_of({kDeck});
    unsetenv(name);
    EXPECT_TRUE(message.starts_with(std::string("environment: ") + name + ": is what the bench")) << message;
  }
}

}  // namespace
}  // namespace hat
