#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hat {

/// One `key = value` line of a deck. `key` has the section put before it ("model.width").
struct DeckEntry {
  std::string key;
  std::vector<std::string> values;  ///< one, or the elements of a list
  bool is_list = false;
  int line = 0;  ///< counted from 1
};

/// Reads the part of TOML that decks use: sections, strings ("..." with \" \\ \n \t \r \u, '...' as they are), numbers,
/// true and false, lists (over several lines if need be), comments. Bare words are taken as strings. Beyond TOML, a key
/// may have a value and keys below it (`servers = 1`, `servers.placement = "packed"`).
///
/// This is not CLI11's own reader: that one drops what stands behind a '#' inside quotes, merges keys that come twice,
/// and passes over lines of one or two characters, all without a word.
///
/// Throws InputError(name, key, reason) on anything else, on a key that comes twice, and on a deck without keys.
std::vector<DeckEntry> parse_deck(std::string_view text, const std::string& name);

/// The text of a deck file. Throws InputError when it is missing, a folder, unreadable, empty or not text.
std::string read_deck_file(const std::filesystem::path& path);

/// A string as parse_deck reads it back.
std::string quote(std::string_view text);

}  // namespace hat
