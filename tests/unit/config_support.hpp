#pragma once
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/config/option_set.hpp"
#include "hat/core/error.hpp"

/// What the tests of decks and options share.
namespace hat::test {

/// A file in the test's own temporary folder.
class DeckFile {
 public:
  explicit DeckFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "hat-test-config-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "deck.toml";
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~DeckFile() { std::filesystem::remove_all(folder_); }
  DeckFile(const DeckFile&) = delete;
  DeckFile& operator=(const DeckFile&) = delete;
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path path_;
};

/// An environment variable for the length of a scope.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

/// `hat train` as far as its keys go.
struct Train {
  CLI::App app{"test", "hat"};
  CLI::App* command = app.add_subcommand("train");
  Deck deck;
  OptionSet options{*command};

  Train() { add_deck_keys(options, deck); }

  void load(const std::optional<std::filesystem::path>& deck_file, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), "train");
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
    options.load(deck_file);
  }
};

/// The message of the InputError that loading (and resolving) this deck gives; "" when it gives none.
inline std::string message_of(const std::string& deck_text, std::string* path = nullptr) {
  const DeckFile file(deck_text);
  if (path != nullptr) *path = file.path().string();
  Train train;
  try {
    train.load(file.path());
    resolve_presets(train.options, train.deck);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

inline const std::string kSound = "data.path = \"d.h5\"\ntrain.steps = 5\n";

/// What loading and resolving this deck with these arguments says; the name of the deck is DECK in it.
inline std::string answer_to(const std::string& deck_text, const std::vector<std::string>& arguments) {
  const DeckFile file(deck_text);
  Train train;
  train.load(file.path(), arguments);
  try {
    resolve_presets(train.options, train.deck);
  } catch (const InputError& error) {
    std::string message = error.what();
    const size_t at = message.find(file.path().string());
    return at == std::string::npos ? message : message.replace(at, file.path().string().size(), "DECK");
  }
  return "";
}

}  // namespace hat::test
