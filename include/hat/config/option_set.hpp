#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hat/core/error.hpp"

namespace hat {

/// A set of keys, each of which is at once a command line option (`--model.width`), an environment variable
/// (`HAT_MODEL_WIDTH`) and an entry of a deck file (`width` in `[model]`, or `model.width` at the top). The command line
/// wins over the environment, the environment over the deck, the deck over the default.
///
/// Use: construct on a CLI::App (a subcommand), add the keys, let CLI11 parse the command line, then call `load`.
class OptionSet {
 public:
  /// `section`: put before every key in decks and environment ("tokenize": HAT_TOKENIZE_OUTPUT, `[tokenize] output`),
  /// not on the command line (`--output`). Empty for the keys of `hat train`.
  explicit OptionSet(CLI::App& app, std::string section = "");

  /// Registers a key. The CLI option is returned for CLI11's checks (`->check(CLI::Range(1, 8))`, transformers, ...).
  template <class T>
  CLI::Option* add(const std::string& key, T& value, const std::string& help) {
    return remember(key, app_->add_option("--" + key, value, help)->capture_default_str());
  }
  CLI::Option* add_flag(const std::string& key, bool& value, const std::string& help) {
    return remember(key, app_->add_flag("--" + key + ",!--no-" + key, value, help));
  }

  /// Applies environment and deck to the keys that the command line left open. Throws InputError("<deck file>" |
  /// "environment", key, reason); unknown keys get a suggestion. Unknown HAT_* environment variables are errors too.
  void load(const std::optional<std::filesystem::path>& deck_file);

  /// Where the value of a key came from: "command line", "environment", the deck's file name, or "default".
  const std::string& origin(const std::string& key) const;
  bool is_default(const std::string& key) const;

  /// The effective values as a deck that reproduces them.
  std::string effective() const;

  std::vector<std::string> keys() const;

 private:
  struct Entry {
    std::string key;
    CLI::Option* option;
    std::string origin;
  };
  CLI::Option* remember(const std::string& key, CLI::Option* option);
  CLI::App* app_;
  std::string section_;
  std::vector<Entry> entries_;
};

}  // namespace hat
