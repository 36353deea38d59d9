#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hat/core/error.hpp"

namespace hat {

/// A value as it stands in a deck.
std::string deck_text(bool value);
std::string deck_text(double value);
std::string deck_text(const std::string& value);
std::string deck_text(const std::vector<std::string>& values);
std::string deck_text(const std::vector<double>& values);
template <class T>
requires std::is_integral_v<T> std::string deck_text(T value) { return std::to_string(value); }

/// A set of keys, each of which is at once a command line option (`--model.width`), an environment variable
/// (`HAT_MODEL_WIDTH`) and an entry of a deck file (`width` in `[model]`, or `model.width` at the top). The command
/// line wins over the environment, the environment over the deck, the deck over the default. Flags are true or false in
/// all of them; on the command line `--trace` is true and `--no-trace` false.
///
/// Use: construct on a CLI::App (a subcommand), add the keys, let CLI11 parse the command line, then call `load`.
/// The bound values must outlive the set. All sets of the process know of each other's keys: a deck or an environment
/// may also hold keys of other commands, which are then passed over, while a key that no command knows is an error.
class OptionSet {
 public:
  /// `section`: put before every key in decks and environment ("tokenize": HAT_TOKENIZE_OUTPUT, `[tokenize] output`),
  /// not on the command line (`--output`). Empty for the keys of `hat train`.
  explicit OptionSet(CLI::App& app, std::string section = "");

  /// Registers a key. The CLI option is returned for CLI11's checks (`->check(integer_in(1, 8))`, transformers, ...).
  /// A list takes its elements separated by commas, on the command line and in the environment.
  template <class T>
  CLI::Option* add(const std::string& key, T& value, const std::string& help) {
    CLI::Option* option = app_->add_option("--" + key, value, help)->capture_default_str();
    constexpr bool kIsList = CLI::detail::is_mutable_container<T>::value;
    if constexpr (kIsList) option->delimiter(',')->allow_extra_args(false);
    return remember({key, option, [&value] { return deck_text(value); }, kIsList ? Kind::list : Kind::single});
  }

  CLI::Option* add_flag(const std::string& key, bool& value, const std::string& help);

  /// Registers a key whose values have names. An enum takes the names only. An integer takes numbers from 0 to
  /// `most_number` as well, and the names stand for special ones.
  template <class T>
  requires std::is_enum_v<T> || std::is_same_v<T, int64_t> CLI::Option* add_named(
      const std::string& key, T& value, std::vector<std::pair<std::string, T>> names, const std::string& help,
      int64_t most_number = -1) {
    Names numbers;
    for (const auto& [name, named] : names) numbers.emplace_back(name, static_cast<int64_t>(named));
    auto text = [&value, numbers]() -> std::string {
      for (const auto& [name, number] : numbers) {
        if (number == static_cast<int64_t>(value)) return deck_text(name);
      }
      return std::to_string(static_cast<int64_t>(value));
    };
    CLI::Option* option = app_->add_option("--" + key, value, help);
    option->default_str(unquoted(text()))->type_name("NAME");
    option->transform(named_values(std::move(numbers), most_number));
    return remember({key, option, text, Kind::single});
  }

  /// Applies environment and deck to the keys that the command line left open. Throws InputError("<deck file>" |
  /// "environment", key, reason); unknown keys get a suggestion. Unknown HAT_* environment variables are errors too.
  void load(const std::optional<std::filesystem::path>& deck_file);

  /// Applies a deck alone, whatever the environment says: one that was stored. `name`: for errors.
  void load_deck(const std::string& text, const std::string& name);

  /// After load: sets a key, whatever the user has set, as the option `where` ("command line: --policies") asks for.
  /// Errors about the key then name that place: the user did not write the key. Throws InputError(where, key, reason).
  void set(const std::string& key, const std::string& value, const std::string& where);

  /// Where the value of a key came from: "command line", "environment", the deck's file name, "default", or as told to
  /// `set`.
  const std::string& origin(const std::string& key) const;
  bool is_default(const std::string& key) const;
  /// Of several values the nearest to the user wins; this is also which of several keys that exclude each other counts.
  /// What `set` has set comes before all that the user wrote.
  enum class Nearness { default_value, deck, environment, command_line, set };
  Nearness nearness(const std::string& key) const;

  /// What an error message about a key should name as its place: its origin or, for a default, what the user could have
  /// set it in: the deck if there is one (keys of `hat train`), otherwise the command line.
  const std::string& place(const std::string& key) const;
  /// The name of a key at its place: `--model.width`, `HAT_MODEL_WIDTH`, or `model.width`.
  std::string name(const std::string& key) const;
  /// An error about the value of a key, to be thrown: names both. `causes`: other keys that make the value wrong. Where
  /// one of them was set nearer to the user, the user looks there: a key that has its default is named as if it had
  /// been set at that place, and of one that was set elsewhere the error names the cause, too.
  InputError error(const std::string& key, const std::string& reason,
                   const std::vector<std::string>& causes = {}) const;

  /// The same about what was found wrong where nobody knew of this set. A section is named at the place of its key that
  /// is nearest to the user; a key that this set does not have stays as it is.
  InputError error(const KeyError& bad) const;
  /// For checks that know nothing of this set: gives back what `job` does, and its KeyErrors name their place.
  template <class Job>
  auto naming_places(Job job) const {
    try {
      return job();
    } catch (const KeyError& bad) {
      throw error(bad);
    }
  }

  /// Leaves a key out of `effective`: it is about this start alone.
  void leave_out(const std::string& key) { find(key).is_stored = false; }
  /// The effective values as a deck that reproduces them.
  std::string effective() const;

  std::vector<std::string> keys() const;

 private:
  using Names = std::vector<std::pair<std::string, int64_t>>;
  enum class Kind { single, list, flag };
  struct Entry {
    std::string key;
    CLI::Option* option;
    std::function<std::string()> text;  // the value as it stands in a deck
    Kind kind;
    std::string origin = "default";
    Nearness nearness = Nearness::default_value;
    bool is_stored = true;  // in decks
  };
  /// The names under which other sets know this one's keys.
  struct Published {
    std::vector<std::string> deck_keys;
    std::vector<std::string> variables;
  };

  static std::vector<std::weak_ptr<Published>>& all_published();
  static bool is_known_elsewhere(const std::string& name, std::vector<std::string> Published::*names);
  static CLI::Validator named_values(Names names, int64_t most_number);
  static std::string unquoted(const std::string& text);

  CLI::Option* remember(Entry entry);
  /// The name of a key at a place of that nearness.
  std::string name_at(const std::string& key, Nearness nearness) const;
  const Entry& find(const std::string& key) const;
  Entry& find(const std::string& key) { return const_cast<Entry&>(std::as_const(*this).find(key)); }
  std::string deck_key(const std::string& key) const;
  std::string variable(const std::string& key) const;
  void load_environment();
  [[noreturn]] void refuse_unknown_key(const std::string& name, int line) const;
  static void apply(const Entry& entry, const std::vector<std::string>& values, const std::string& where,
                    const std::string& name, const std::string& note);

  CLI::App* app_;
  std::string section_;
  std::vector<Entry> entries_;
  std::optional<std::string> deck_name_;  // of the deck that was loaded
  std::shared_ptr<Published> published_;
};

}  // namespace hat
