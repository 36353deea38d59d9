#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hat/config/deck_schema.hpp"

namespace hat {
namespace {

/// `hat train` with these arguments behind a sound beginning.
struct Train {
  CLI::App app{"test", "hat"};
  CLI::App* command = app.add_subcommand("train");
  Deck deck;
  OptionSet options{*command};

  explicit Train(std::vector<std::string> arguments) {
    add_deck_keys(options, deck);
    arguments.insert(arguments.begin(), {"train", "--data.path", "d.h5", "--train.steps", "5"});
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
    options.load(std::nullopt);
    resolve_presets(options, deck);
  }
};

std::string message_of(const std::vector<std::string>& arguments) {
  try {
    const Train train(arguments);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(EmulationKeys, AreOffByDefault) {
  const Train train({});
  EXPECT_FALSE(train.deck.emulation.device.on());
  EXPECT_FALSE(train.deck.emulation.network.on());
}

TEST(EmulationKeys, TheEffectiveDeckHasThemAll) {
  const Train train({"--worker.emulate.speed", "1e9,2.5e9", "--worker.emulate.stall_every_s", "9",
                     "--worker.emulate.stall_for_s", "2", "--worker.emulate.disturbed", "1,0", "--cost_of",
                     "llama_1b"});
  const std::string deck = train.options.effective();
  for (const char* line : {"emulate.speed = [1000000000, 2500000000]", "emulate.disturbed = [\"1\", \"0\"]",
                           "cost_of = \"llama_1b\"", "emulate.ranks_per_node = 1"}) {
    EXPECT_NE(deck.find(line), std::string::npos) << line << " is not in " << deck;
  }
}

TEST(EmulationKeys, OneSpeedIsEverybodysSeveralAreEachOnes) {
  const Train one({"--worker.emulate.speed", "3e9"});
  EXPECT_EQ(one.deck.emulation.device.speed_of(5), 3e9);
  const Train two({"--worker.emulate.speed", "3e9,4e9"});
  EXPECT_EQ(two.deck.emulation.device.speed_of(1), 4e9);
}

struct Refusal {
  std::vector<std::string> arguments;
  std::vector<std::string> words;
};

TEST(EmulationKeys, WhatChangesNothingOrContradictsIsRefused) {
  const std::string worker = "--worker.emulate.";
  const std::string comm = "--comm.emulate.";
  const std::vector<Refusal> refusals{
      {{worker + "jitter", "0.1"}, {"worker.emulate.jitter", "without worker.emulate.speed"}},
      {{worker + "slow_every_s", "5"}, {"worker.emulate.slow_every_s", "without worker.emulate.speed"}},
      {{worker + "speed", "1e9,0"}, {"worker.emulate.speed", "above 0"}},
      {{worker + "speed", "1e9", worker + "slow_for_s", "1"}, {"slow_for_s", "without worker.emulate.slow_every_s"}},
      {{worker + "speed", "1e9", worker + "slow_every_s", "1"}, {"slow_for_s", "above 0"}},
      {{worker + "speed", "1e9", worker + "slow_every_s", "1", worker + "slow_for_s", "2"}, {"slow_for_s", "at most"}},
      {{worker + "speed", "1e9", worker + "slow_every_s", "2", worker + "slow_for_s", "1"}, {"slow_factor", "above 1"}},
      {{worker + "speed", "1e9", worker + "stall_every_s", "2"}, {"stall_for_s", "above 0"}},
      {{worker + "speed", "1e9", worker + "disturbed", "1"}, {"disturbed", "changes nothing"}},
      {{worker + "speed", "1e9", worker + "stall_every_s", "2", worker + "stall_for_s", "1", worker + "disturbed",
        "1,all"},
       {"disturbed", "'all' stands alone"}},
      {{worker + "busy_watts", "100", worker + "idle_watts", "200"}, {"idle_watts", "200", "100"}},
      {{comm + "latency_s", "0.1"}, {"comm.emulate.latency_s", "without comm.emulate.bandwidth"}},
      {{comm + "ranks_per_node", "4"}, {"comm.emulate.ranks_per_node", "without comm.emulate.bandwidth"}},
      {{"--cost_of", "gpt2_124m"}, {"cost_of", "without"}},
      {{comm + "bandwidth", "1e9", "--length_scale", "16"}, {"length_scale", "without worker.emulate.speed"}},
  };
  for (const Refusal& refusal : refusals) {
    const std::string message = message_of(refusal.arguments);
    EXPECT_EQ(message.find("command line: "), 0U) << message;
    for (const std::string& word : refusal.words) {
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in '" << message << "'";
    }
  }
}

TEST(EmulationKeys, WhatBelongsTogetherIsTaken) {
  EXPECT_EQ(message_of({"--worker.emulate.speed", "1e9", "--length_scale", "16", "--cost_of", "gpt2_124m",
                        "--worker.emulate.slow_every_s", "2", "--worker.emulate.slow_for_s", "2",
                        "--worker.emulate.slow_factor", "2", "--worker.emulate.disturbed", "1"}),
            "");
  EXPECT_EQ(
      message_of({"--comm.emulate.bandwidth", "1e9", "--comm.emulate.latency_s", "1e-4", "--cost_of", "llama_1b"}), "");
  EXPECT_EQ(message_of({"--worker.emulate.busy_watts", "300", "--worker.emulate.idle_watts", "60"}), "");
}

TEST(EmulatedRanks, MustFit) {
  EmulationConfig emulation;
  emulation.device.speed = {1e9, 2e9, 3e9};
  EXPECT_NO_THROW(check_emulated_ranks(emulation, 3, 1));
  EXPECT_THROW(check_emulated_ranks(emulation, 4, 1), InputError);
  emulation.device.disturbed = {"2"};
  EXPECT_NO_THROW(check_emulated_ranks(emulation, 3, 1));
  emulation.device.disturbed = {"2", "3"};
  EXPECT_THROW(check_emulated_ranks(emulation, 3, 1), InputError);
  emulation.device.disturbed = {"all"};
  EXPECT_NO_THROW(check_emulated_ranks(emulation, 3, 2));
  emulation.network.bandwidth = 1e9;
  EXPECT_NO_THROW(check_emulated_ranks(emulation, 3, 1));
  EXPECT_THROW(check_emulated_ranks(emulation, 3, 2), InputError);
}

}  // namespace
}  // namespace hat
