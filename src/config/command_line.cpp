#include "hat/config/command_line.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "hat/core/text.hpp"

namespace hat {

namespace {

/// Long option names of an app, or its commands while none is chosen.
std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(command->get_name());
  }
  return words;
}

}  // namespace

InputError command_line_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::vector<std::string> extras = app.remaining(true);
  // A misspelt command leaves CLI11 saying that one is missing, with the word among the remaining ones.
  const bool is_about_extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                               (chosen.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr);
  if (!is_about_extras || extras.empty()) return {"command line", "", error.what()};
  const std::string word = extras.front().substr(0, extras.front().find('='));
  const std::string suggestion = closest_match(word, known_words(command));
  const char* kind = word.starts_with("-") ? "unknown option"
                     : chosen.empty()      ? "unknown command"
                                           : "not expected here";
  return {"command line", word, suggestion.empty() ? kind : fmt::format("{}; did you mean '{}'?", kind, suggestion)};
}

}  // namespace hat
