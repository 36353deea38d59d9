#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "commands/all_ranks.hpp"
#include "commands/training_run.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/commands/commands.hpp"
#include "hat/config/deck_schema.hpp"

namespace hat {

namespace {

namespace fs = std::filesystem;

/// `RUN/deck.toml --resume` means the run in the folder RUN, wherever that lies now: its deck says where it was.
void continue_where_the_deck_lies(OptionSet& options, const Deck& deck, const std::optional<fs::path>& deck_file) {
  if (!deck.resume || !deck_file || deck_file->filename() != "deck.toml") return;
  const fs::path run = deck_file->has_parent_path() ? deck_file->parent_path() : fs::path(".");
  const bool is_chosen = options.nearness("output") > OptionSet::Nearness::deck;
  if (is_chosen || !fs::exists(run / "checkpoints")) return;
  options.set("output", run.string(), deck_file->string());
}

ExitCode train(OptionSet& options, Deck& deck, const std::optional<fs::path>& deck_file) {
  MpiEnvironment mpi;
  const Communicator world = Communicator::world();
  const ExitCode code = on_all_ranks(world, [&] {
    refuse_accidental_singleton();
    options.load(deck_file);
    continue_where_the_deck_lies(options, deck, deck_file);
    resolve_presets(options, deck);
  });
  if (code != ExitCode::success) return code;
  const KeyBlame blame = [&options](const KeyError& bad) { return options.error(bad); };
  return run_training(world, deck, options.effective(), blame, nullptr);
}

}  // namespace

CommandBody add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model: servers and workers, one deck");
  command->footer(
      "Example: mpirun -n 3 hat train inputs/quickstart.toml --data.path dataset.h5 --output hat-run\n"
      "         mpirun -n 3 hat train hat-run/deck.toml --resume   (goes on in the folder that this deck lies in)\n"
      "Every key is also an environment variable (model.width: HAT_MODEL_WIDTH). Command line over environment over "
      "deck.\nOf keys that exclude each other (batch_tokens, batch_sequences; train.steps, train.tokens, train.epochs) "
      "the one set nearest to the command line counts.\n"
      "Flags are true or false; --trace stands for --trace=true, --no-trace for --trace=false (one word each).");
  auto deck = std::make_shared<Deck>();
  auto deck_file = std::make_shared<std::string>();
  command->add_option("deck", *deck_file,
                      "Deck file (TOML, but a key may have a value and keys below it: optimizer and optimizer.beta1)");
  auto options = std::make_shared<OptionSet>(*command);
  add_deck_keys(*options, *deck);
  return [options, deck, deck_file] {
    std::optional<fs::path> file;
    if (!deck_file->empty()) file = *deck_file;
    return train(*options, *deck, file);
  };
}

}  // namespace hat
