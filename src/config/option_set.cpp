#include "hat/config/option_set.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string_view>

#include "hat/config/checks.hpp"
#include "hat/config/deck_file.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {

constexpr std::string_view kVariablePrefix = "HAT_";
const std::string kCommandLine = "command line";

std::string variable_name(const std::string& deck_key) {
  std::string name(kVariablePrefix);
  for (const char c : deck_key)
    name += c == '.' || c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// A key that ends in `.name`, for a user who put a key at the wrong place; else the closest by spelling.
std::string suggest(const std::string& name, const std::vector<std::string>& known) {
  const auto dot = name.rfind('.');
  const std::string last = dot == std::string::npos ? name : name.substr(dot + 1);
  const auto same_last = std::find_if(known.begin(), known.end(), [&](const std::string& key) {
    return key == last || (key.size() > last.size() && key.ends_with("." + last));
  });
  std::string close = closest_match(name, known);
  if (!close.empty()) return close;
  return same_last == known.end() ? "" : *same_last;
}

std::string unknown_reason(const std::string& kind, const std::string& suggestion) {
  return suggestion.empty() ? fmt::format("unknown {}", kind)
                            : fmt::format("unknown {}; did you mean '{}'?", kind, suggestion);
}

/// What CLI11 says about an option, without the option's name in front.
std::string reason_of(const CLI::Error& error, const CLI::Option& option) {
  std::string reason = error.what();
  const std::string prefix = option.get_name() + ": ";
  if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
  return reason;
}

}  // namespace

std::string deck_text(bool value) { return value ? "true" : "false"; }

std::string deck_text(double value) { return fmt::format("{}", value); }

std::string deck_text(const std::string& value) { return quote(value); }

std::string deck_text(const std::vector<std::string>& values) {
  std::vector<std::string> quoted;
  quoted.reserve(values.size());
  for (const std::string& value : values) quoted.push_back(quote(value));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

std::string deck_text(const std::vector<double>& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

OptionSet::OptionSet(CLI::App& app, std::string section)
    : app_(&app), section_(std::move(section)), published_(std::make_shared<Published>()) {
  all_published().push_back(published_);
}

std::vector<std::weak_ptr<OptionSet::Published>>& OptionSet::all_published() {
  static std::vector<std::weak_ptr<Published>> all;
  return all;
}

bool OptionSet::is_known_elsewhere(const std::string& name, std::vector<std::string> Published::*names) {
  const auto& all = all_published();
  return std::any_of(all.begin(), all.end(), [&](const std::weak_ptr<Published>& weak) {
    const auto published = weak.lock();
    if (!published) return false;
    const std::vector<std::string>& known = (*published).*names;
    return std::find(known.begin(), known.end(), name) != known.end();
  });
}

CLI::Validator OptionSet::named_values(Names names, int64_t most_number) {
  std::vector<std::string> words;
  for (const auto& [name, number] : names) words.push_back(name);
  std::string expected = fmt::format("one of {}", fmt::join(words, ", "));
  if (most_number >= 0) expected = fmt::format("an integer from 0 to {} or {}", most_number, fmt::join(words, ", "));
  std::string description = fmt::format("{{{}}}", fmt::join(words, ","));
  if (most_number >= 0) description = fmt::format("[0 - {}] or {}", most_number, description);
  auto replace = [names = std::move(names), words, expected, most_number](std::string& text) -> std::string {
    for (const auto& [name, number] : names) {
      if (text == name) {
        text = std::to_string(number);
        return "";
      }
    }
    if (most_number >= 0 && integer_in(0, most_number)(text).empty()) return "";
    const std::string suggestion = closest_match(text, words);
    return fmt::format("must be {}, not '{}'{}", expected, text,
                       suggestion.empty() ? "" : fmt::format("; did you mean '{}'?", suggestion));
  };
  return CLI::Validator(replace, description);
}

std::string OptionSet::unquoted(const std::string& text) {
  return text.starts_with('"') ? text.substr(1, text.size() - 2) : text;
}

CLI::Option* OptionSet::add_flag(const std::string& key, bool& value, const std::string& help) {
  // CLI11 shows neither range nor default of a flag.
  CLI::Option* option = app_->add_flag("--" + key + ",!--no-" + key, value,
                                       fmt::format("{} (true or false, default {})", help, deck_text(value)));
  option->check(true_or_false());
  return remember({key, option, [&value] { return deck_text(value); }, Kind::flag});
}

CLI::Option* OptionSet::remember(Entry entry) {
  if (entry.kind != Kind::flag && entry.option->get_default_str().empty()) entry.option->default_str("\"\"");
  published_->deck_keys.push_back(deck_key(entry.key));
  published_->variables.push_back(variable(entry.key));
  entries_.push_back(std::move(entry));
  return entries_.back().option;
}

std::string OptionSet::deck_key(const std::string& key) const { return section_.empty() ? key : section_ + "." + key; }

std::string OptionSet::variable(const std::string& key) const { return variable_name(deck_key(key)); }

void OptionSet::apply(const Entry& entry, const std::vector<std::string>& values, const std::string& where,
                      const std::string& name, const std::string& note) {
  try {
    entry.option->clear();
    entry.option->add_result(values);
    entry.option->run_callback();
  } catch (const CLI::ConversionError&) {
    throw InputError(
        where, name,
        fmt::format("cannot read '{}' as {}{}", fmt::join(values, ", "), entry.option->get_type_name(), note));
  } catch (const CLI::Error& error) {
    throw InputError(where, name, reason_of(error, *entry.option) + note);
  }
}

void OptionSet::load(const std::optional<std::filesystem::path>& deck_file) {
  for (Entry& entry : entries_) {
    if (entry.option->count() == 0) continue;
    entry.origin = kCommandLine;
    entry.nearness = Nearness::command_line;
  }
  load_environment();
  if (deck_file) load_deck(read_deck_file(*deck_file), deck_file->string());
}

void OptionSet::load_environment() {
  for (char** variable_text = environ; *variable_text != nullptr; ++variable_text) {
    const std::string_view text(*variable_text);
    if (!text.starts_with(kVariablePrefix)) continue;
    const std::string name(text.substr(0, text.find('=')));
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return variable(entry.key) == name; });
    if (found == entries_.end()) {
      if (is_known_elsewhere(name, &Published::variables)) continue;
      std::vector<std::string> known;
      for (const Entry& entry : entries_) known.push_back(variable(entry.key));
      throw InputError("environment", name, unknown_reason("variable", closest_match(name, known)));
    }
    if (found->nearness != Nearness::default_value) continue;
    const std::string value(text.substr(std::min(text.size(), name.size() + 1)));
    if (value.empty() && found->text().front() != '"') {
      throw InputError("environment", name, "is empty; unset it to use the default");
    }
    apply(*found, {value}, "environment", name, "");
    found->origin = "environment";
    found->nearness = Nearness::environment;
  }
}

void OptionSet::load_deck(const std::string& text, const std::string& name) {
  deck_name_ = name;
  for (const DeckEntry& line : parse_deck(text, name)) {
    const std::string note = fmt::format(" (line {})", line.line);
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return deck_key(entry.key) == line.key; });
    if (found == entries_.end()) {
      if (is_known_elsewhere(line.key, &Published::deck_keys)) continue;
      refuse_unknown_key(line.key, line.line);
    }
    if (found->nearness != Nearness::default_value) continue;  // the command line or the environment has set it
    if (line.is_list && found->kind != Kind::list) {
      throw InputError(name, line.key, "takes one value, not a list" + note);
    }
    if (line.values.empty()) throw InputError(name, line.key, "the list is empty" + note);
    if (line.values.front().empty() && found->text().front() != '"') {
      throw InputError(name, line.key, "the value is empty" + note);
    }
    apply(*found, line.values, name, line.key, note);
    found->origin = name;
    found->nearness = Nearness::deck;
  }
}

void OptionSet::set(const std::string& key, const std::string& value, const std::string& where) {
  Entry& entry = find(key);
  apply(entry, {value}, where, key, "");
  entry.origin = where;
  entry.nearness = Nearness::set;
}

void OptionSet::refuse_unknown_key(const std::string& name, int line) const {
  std::vector<std::string> known;
  for (const Entry& entry : entries_) known.push_back(deck_key(entry.key));
  throw InputError(*deck_name_, name, fmt::format("{} (line {})", unknown_reason("key", suggest(name, known)), line));
}

const OptionSet::Entry& OptionSet::find(const std::string& key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) throw std::logic_error("no such key: " + key);
  return *found;
}

const std::string& OptionSet::origin(const std::string& key) const { return find(key).origin; }

OptionSet::Nearness OptionSet::nearness(const std::string& key) const { return find(key).nearness; }

bool OptionSet::is_default(const std::string& key) const { return nearness(key) == Nearness::default_value; }

const std::string& OptionSet::place(const std::string& key) const {
  if (!is_default(key)) return origin(key);
  return deck_name_ && section_.empty() ? *deck_name_ : kCommandLine;
}

std::string OptionSet::name(const std::string& key) const { return name_at(key, nearness(key)); }

std::string OptionSet::name_at(const std::string& key, Nearness nearness) const {
  switch (nearness) {
    case Nearness::command_line:
      return "--" + key;
    case Nearness::environment:
      return variable(key);
    case Nearness::default_value:
      return deck_name_ && section_.empty() ? deck_key(key) : "--" + key;
    case Nearness::deck:
    case Nearness::set:
      break;
  }
  return deck_key(key);
}

InputError OptionSet::error(const std::string& key, const std::string& reason,
                            const std::vector<std::string>& causes) const {
  std::string nearest = key;
  for (const std::string& cause : causes) {
    if (nearness(cause) > nearness(nearest)) nearest = cause;
  }
  if (nearest == key) return {place(key), name(key), reason};
  if (is_default(key)) return {origin(nearest), name_at(key, nearness(nearest)), reason};
  if (origin(nearest) == origin(key)) return {place(key), name(key), reason};
  return {place(key), name(key), fmt::format("{} (now by {}, {})", reason, name(nearest), origin(nearest))};
}

InputError OptionSet::error(const KeyError& bad) const {
  const Entry* nearest = nullptr;  // of a section
  for (const Entry& entry : entries_) {
    const std::string known = deck_key(entry.key);
    if (known == bad.key()) {
      std::vector<std::string> causes;
      for (const Entry& other : entries_) {
        if (std::ranges::count(bad.causes(), deck_key(other.key)) > 0) causes.push_back(other.key);
      }
      return error(entry.key, bad.reason(), causes);
    }
    const bool is_inside = known.starts_with(bad.key() + ".");
    if (is_inside && (nearest == nullptr || entry.nearness > nearest->nearness)) nearest = &entry;
  }
  if (nearest == nullptr) return static_cast<const InputError&>(bad);
  return {place(nearest->key), bad.key(), bad.reason()};
}

std::string OptionSet::effective() const {
  // Keys without a section first: behind a [section] they would belong to it.
  std::string text;
  std::vector<std::pair<std::string, std::string>> sections;  // in the order of their first key
  for (const Entry& entry : entries_) {
    if (!entry.is_stored) continue;
    const std::string key = deck_key(entry.key);
    const auto dot = key.find('.');
    if (dot == std::string::npos) {
      text += fmt::format("{} = {}\n", key, entry.text());
      continue;
    }
    const std::string section = key.substr(0, dot);
    auto found =
        std::find_if(sections.begin(), sections.end(), [&](const auto& known) { return known.first == section; });
    if (found == sections.end()) found = sections.insert(sections.end(), {section, ""});
    found->second += fmt::format("{} = {}\n", key.substr(dot + 1), entry.text());
  }
  for (const auto& [section, lines] : sections) text += fmt::format("\n[{}]\n{}", section, lines);
  return text;
}

std::vector<std::string> OptionSet::keys() const {
  std::vector<std::string> keys;
  for (const Entry& entry : entries_) keys.push_back(entry.key);
  return keys;
}

}  // namespace hat
