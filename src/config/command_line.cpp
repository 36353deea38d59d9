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

void refuse_misplaced_flag_values(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::string prefix = "--no-";
  const CLI::App* command = &app;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") return;
    if (!word.starts_with("--")) {
      const auto named = command->get_subcommands([&word](const CLI::App* c) { return c->check_name(word); });
      if (!named.empty()) command = named.front();
      continue;
    }
    const size_t end = word.find('=');
    const std::string name = word.substr(0, end);
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option == nullptr) continue;
    const bool is_flag = option->get_expected_max() == 0;
    if (!is_flag) {
      if (end == std::string::npos) ++i;  // the next word is its value
      continue;
    }
    const bool negates = name.starts_with(prefix) && command->get_option_no_throw("--" + name.substr(prefix.size()));
    const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "";
    const bool two_words = end == std::string::npos && (next == "true" || next == "false");
    if (negates && (two_words || end != std::string::npos)) {
      throw InputError("command line", name,
                       fmt::format("takes no value; write --{}=true or =false", name.substr(prefix.size())));
    }
    if (two_words) throw InputError("command line", name, fmt::format("write {}={}", name, next));
  }
}

InputError command_line_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* chosen = &app;  // the command that was named, down to one that has none below
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  const bool misses_command = !chosen->get_subcommands([](const CLI::App*) { return true; }).empty();
  const std::vector<std::string> extras = app.remaining(true);
  // A misspelt command leaves CLI11 saying that one is missing, with the word among the remaining ones.
  const bool is_about_extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                               (misses_command && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    // What CLI11 says of an option that takes one value ("At Most 1 required") reads like a fault of the value.
    for (const CLI::Option* option : chosen->get_options()) {
      const std::string name = option->get_name();
      if (option->get_items_expected_max() > 1 || !std::string(error.what()).starts_with(name + ":")) continue;
      return {"command line", name, option->count() > 1 ? "given twice" : "takes a value"};
    }
  }
  if (!is_about_extras || extras.empty()) return {"command line", "", error.what()};
  const std::string word = extras.front().substr(0, extras.front().find('='));
  const std::string suggestion = closest_match(word, known_words(*chosen));
  const char* kind = word.starts_with("-") ? "unknown option"
                     : misses_command      ? "unknown command"
                                           : "not expected here";
  return {"command line", word, suggestion.empty() ? kind : fmt::format("{}; did you mean '{}'?", kind, suggestion)};
}

}  // namespace hat
