#include "commands/inspect.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "hat/commands/commands.hpp"
#include "hat/config/option_set.hpp"
#include "hat/io/hdf5.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
struct InspectOptions {
  std::string path;
  bool json = false;
  bool verify = true;
};

Inspection inspect_folder(const fs::path& path, ReadContents contents) {
  if (fs::exists(path / "checkpoint.h5") || fs::exists(path / "complete")) return inspect_checkpoint(path);
  if (fs::exists(path / "checkpoints") || fs::exists(path / "metrics.jsonl") || fs::exists(path / "status.json") ||
      fs::exists(path / "deck.toml")) {
    return inspect_run(path, contents);
  }
  return inspect_checkpoint(path);  // says what it is not
}

Inspection inspect_file(const fs::path& path, ReadContents contents) {
  if (path.filename() == "checkpoint.h5") return inspect_checkpoint(path);
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Group root = file.root();
  if (root.has_attribute("format") && root.text("format") == "hat-checkpoint-server") {
    throw InputError(path.string(), "", "is one server's part of a checkpoint: give the folder it is in");
  }
  return inspect_dataset(path, contents);
}

ExitCode inspect(OptionSet& keys, const InspectOptions& options) {
  keys.load(std::nullopt);
  const fs::path path = options.path;
  if (!fs::exists(path)) throw InputError(options.path, "", "no such file or folder");
  const ReadContents contents = options.verify ? ReadContents::yes : ReadContents::no;
  Inspection result = fs::is_directory(path) ? inspect_folder(path, contents) : inspect_file(path, contents);
  result.data["problems"] = result.problems;
  if (options.json) {
    // Text from outside may not be UTF-8; that must not make the output invalid.
    fmt::print("{}\n", result.data.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}", result.text);
  }
  std::fflush(stdout);  // or the lines below stand in the middle of one, where both go to one file
  for (const std::string& problem : result.problems) fmt::print(stderr, "hat: {}\n", problem);
  return result.problems.empty() ? ExitCode::success : ExitCode::bad_input;
}
}  // namespace

CommandBody add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "Show what a dataset, a checkpoint or a run folder holds");
  command->footer(
      "Everything is read and checked; what is damaged or missing is named, and the exit code is 2 then.\n"
      "Example: hat inspect hat-run");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("path", options->path, "dataset.h5, a checkpoint's folder or checkpoint.h5, or a run folder")
      ->required();
  auto keys = std::make_shared<OptionSet>(*command, "inspect");
  keys->add_flag("json", options->json, "Print JSON");
  keys->add_flag("verify", options->verify,
                 "Read all tokens of a dataset, and all values of a run's checkpoints, and compare their checksums");
  return [keys, options] { return inspect(*keys, *options); };
}

}  // namespace hat
