#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "commands/longtail_plan.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/core/error.hpp"
#include "io_support.hpp"

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

  LongtailPlan plan(std::vector<std::string> arguments, int ranks = 3) {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    const DeckMaker decks(app.remaining(), keys);
    keys.load(decks.deck_file());
    return plan_longtail(options, keys, decks, ranks, "folder");
  }
};

std::string message_of(const std::vector<std::string>& arguments, int ranks = 3) {
  try {
    Bench().plan(arguments, ranks);
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
  EXPECT_EQ(message_of({kDeck, "--policies", "on_demand/sync:never,on_demand/sync/all:always"}), "");
  EXPECT_EQ(message_of({kDeck, "--policies", "on_demand/sync:"}),
            "command line: --policies: 'on_demand/sync:': nothing behind the colon");
  EXPECT_EQ(
      message_of({kDeck, "--policies", "on_demand/sync:foo"}),
      "command line: --policies: 'on_demand/sync:foo': split.policy: must be one of auto, never, always, not 'foo'");
  EXPECT_EQ(message_of({kDeck, "--policies", "on_demand/foo"}),
            "command line: --policies: 'on_demand/foo': mode: must be one of sync, hybrid, async, not 'foo'");
  EXPECT_TRUE(message_of({kDeck, "--staleness", "99"}).starts_with("command line: --staleness: must be"));
  EXPECT_TRUE(
      message_of({kDeck, "--model.max_length=100"}).starts_with("command line: --model.max_length: 100 is less"))
      << message_of({kDeck, "--model.max_length=100"});
  EXPECT_TRUE(message_of({kDeck, "--steps", "1000000"}).starts_with("command line: --steps: 1,000,000 steps of 8"));
  EXPECT_TRUE(message_of({kDeck, "--sequences", "1000000"}).starts_with("command line: --sequences: 40 steps of"));
  EXPECT_EQ(message_of({kDeck, "--trace=true", "--no-trace=1"}),
            "command line: --no-trace: takes no value; write --trace=true or =false");
  EXPECT_EQ(message_of({kDeck, "--batch_sequences=3"}),
            "command line: --batch_sequences: is what the bench varies or sets itself (--sequences)");
  EXPECT_TRUE(message_of({kDeck, "--model.widht", "3"}).starts_with("command line: --model.widht: unknown option"));
  EXPECT_EQ(message_of({kDeck, "--precision=auto", "--staleness.predict=true"}), "");
}

TEST(LongtailPlan, WordsComeBeforeRanks) {
  EXPECT_EQ(message_of({kDeck}, /*ranks=*/1),
            "command line: 'static/sync' needs 1 rank beside 1 server, and there is 1 "
            "rank (mpirun -n)");
  EXPECT_EQ(message_of({kDeck, "--policies", "on_demand/sync@5"}, /*ranks=*/3),
            "command line: --policies: 'on_demand/sync@5' needs 5 ranks beside 1 server, and there are 3 ranks (mpirun "
            "-n)");
  EXPECT_TRUE(message_of({kDeck, "--policies", "on_demand/sync:sometimes"}, /*ranks=*/1)
                  .starts_with("command line: --policies: 'on_demand/sync:sometimes': split.policy: must be one of"));
  EXPECT_TRUE(message_of({kDeck, "--staleness", "1,999"}, /*ranks=*/1)
                  .starts_with("command line: --staleness: must be an integer from 0 to 64"));
}

TEST(LongtailPlan, ErrorsOfARunNameItsPolicy) {
  const LongtailPlan plan =
      Bench().plan({kDeck, "--policies", "on_demand/sync:always@1,on_demand/hybrid/nothere", "--servers", "1"});
  const KeyBlame& first = plan.groups.at(0).runs.at(0).blame;
  EXPECT_STREQ(first(KeyError("split.policy", "needs two")).what(),
               "command line: --policies: 'on_demand/sync:always@1': split.policy: needs two");
  EXPECT_STREQ(first(KeyError("servers", "too many")).what(),
               "command line: --servers: too many (with 'on_demand/sync:always@1')");
  EXPECT_STREQ(plan.groups.at(0).runs.at(1).blame(KeyError("barriers", "match nothing")).what(),
               "command line: --policies: 'on_demand/hybrid/nothere': barriers: match nothing");
  EXPECT_TRUE(message_of({kDeck, "--policies", "on_demand/async", "--barriers=all"})
                  .starts_with("command line: --policies: 'on_demand/async': "));
}

/// The deck of the bench as one of a classic parameter server, with these lines before it.
std::string unbounded_deck(const test::TemporaryFolder& folder, const std::string& lines) {
  std::ifstream file(kDeck);
  const std::string rest(std::istreambuf_iterator<char>(file), {});
  const std::string path = (folder / "deck.toml").string();
  std::ofstream(path) << "mode = \"async\"\nstaleness = \"unbounded\"\n" << lines << rest;
  return path;
}

TEST(LongtailPlan, RemediesOfUnboundedStalenessAreForUnboundedRowsOnly) {
  const test::TemporaryFolder folder;
  const std::string deck = unbounded_deck(folder, "staleness.limit = 2\nstaleness.over_limit = \"recompute\"\n");
  const LongtailPlan plan = Bench().plan({deck, "--staleness", "1,unbounded"});
  size_t unbounded = 0;
  for (const LongtailRun& run : plan.groups.at(0).runs) {
    EXPECT_EQ(run.deck.staleness_limit.is_set(), run.deck.staleness == kUnbounded) << run.policy;
    EXPECT_EQ(run.deck.staleness_limit.action == OverLimit::recompute, run.deck.staleness == kUnbounded) << run.policy;
    if (run.deck.staleness == kUnbounded) ++unbounded;
  }
  EXPECT_EQ(unbounded, 1U);
}

TEST(LongtailPlan, UnboundedRowsTakeWhatBoundedOnesCannot) {
  const test::TemporaryFolder folder;
  const std::string deck = unbounded_deck(folder, "clip = \"global\"\nstaleness.limit_s = 2\n");
  EXPECT_EQ(message_of({deck, "--policies", "on_demand/async", "--staleness", "unbounded"}), "");
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
