#include <fmt/format.h>

#include <memory>
#include <string>

#include "commands/device_choice.hpp"
#include "commands/loaded_model.hpp"
#include "hat/commands/commands.hpp"
#include "hat/commands/generation.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/option_set.hpp"

namespace hat {

namespace {

struct GenerateOptions {
  std::string model;
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 0.8;
  uint64_t seed = 1;
  int64_t threads = 1;
  std::string device = "cpu";
};

ExitCode generate(OptionSet& keys, const GenerateOptions& options) {
  keys.load(std::nullopt);
  const DeviceKind device = keys.naming_places([&] { return device_for_one(options.device); });
  LoadedModel model(options.model, static_cast<int>(options.threads), device);
  const CheckpointReader& checkpoint = model.checkpoint();
  const auto tokenizer = make_tokenizer(checkpoint.state().tokenizer, checkpoint.folder().string());
  fmt::print("{}\n", generate_text(model.transformer(), model.parameters(), *tokenizer, options.prompt, options.tokens,
                                   options.temperature, options.seed));
  return ExitCode::success;
}

}  // namespace

CommandBody add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  command->footer(
      "Example: hat generate hat-run --prompt \"The \" --tokens 300 --temperature 0.7\n"
      "Equal options give equal text; --temperature 0 always takes the likeliest token.");
  auto options = std::make_shared<GenerateOptions>();
  auto keys = std::make_shared<OptionSet>(*command, "generate");
  command->add_option("model", options->model, "Run folder (its newest checkpoint) or checkpoint")->required();
  keys->add("prompt", options->prompt, "Start of the text");
  keys->add("tokens", options->tokens, "At most this many tokens; the model may end the text before")
      ->check(integer_in(1, 1'000'000));
  keys->add("temperature", options->temperature, "Below 1 sharper, above 1 flatter, 0 always the likeliest token")
      ->check(real_in(0, 100));
  keys->add("seed", options->seed, "Seed of the sampling")->check(integer_in(0));
  keys->add("threads", options->threads, "Threads of the arithmetic")->check(integer_in(1, 4096));
  keys->add("device", options->device, "What computes: cpu, cuda, or auto: cuda where there is a device")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  return [keys, options] { return generate(*keys, *options); };
}

}  // namespace hat
