#include "hat/config/deck_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "hat/core/error.hpp"

namespace hat {

namespace {

constexpr size_t kLargestDeck = 1 << 20;  // a deck is written by hand; more is some other file

/// Reads a deck from its first character to its last, counting lines for error messages.
class DeckParser {
 public:
  DeckParser(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  std::vector<DeckEntry> parse() {
    while (skip_to_content()) {
      if (peek() == '[') {
        parse_section();
      } else {
        parse_entry();
      }
    }
    if (entries_.empty()) throw InputError(name_, "", "the deck has no keys");
    return std::move(entries_);
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\n'; }

  [[noreturn]] void fail(const std::string& reason) const {
    throw InputError(name_, key_, fmt::format("{} (line {})", reason, line_));
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
  }

  /// Moves over blank lines and comments. False at the end of the text.
  bool skip_to_content() {
    while (at_ < text_.size()) {
      skip_blanks();
      if (at_ >= text_.size()) return false;
      if (peek() == '#') {
        while (peek() != '\n') ++at_;
      } else if (peek() == '\n') {
        ++at_;
        ++line_;
      } else {
        return true;
      }
    }
    return false;
  }

  void expect_end_of_line() {
    skip_blanks();
    if (peek() == '#') {
      while (peek() != '\n') ++at_;
    }
    if (peek() != '\n') fail(fmt::format("unexpected '{}' behind the value", rest_of_line()));
  }

  std::string rest_of_line() const {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    return std::string(text_.substr(at_, std::min<size_t>(end - at_, 40)));
  }

  std::string parse_name() {
    const size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_' || peek() == '-' || peek() == '.') ++at_;
    if (begin == at_) fail(fmt::format("expected a key or a [section], found '{}'", rest_of_line()));
    return std::string(text_.substr(begin, at_ - begin));
  }

  void parse_section() {
    key_.clear();
    ++at_;
    skip_blanks();
    section_ = parse_name();
    skip_blanks();
    if (peek() != ']') fail(fmt::format("section '[{}' is not closed by ']'", section_));
    ++at_;
    expect_end_of_line();
  }

  void parse_entry() {
    key_.clear();
    const std::string name = parse_name();
    key_ = section_.empty() ? name : section_ + "." + name;
    skip_blanks();
    if (peek() != '=') fail("expected '=' and a value");
    ++at_;
    skip_blanks();
    const auto [first, is_new] = lines_.emplace(key_, line_);
    if (!is_new) fail(fmt::format("the key is set twice, first in line {}", first->second));
    DeckEntry entry{key_, {}, peek() == '[', line_};
    if (entry.is_list) {
      entry.values = parse_list();
    } else {
      entry.values.push_back(parse_value());
    }
    expect_end_of_line();
    entries_.push_back(std::move(entry));
    key_.clear();
  }

  std::vector<std::string> parse_list() {
    std::vector<std::string> values;
    ++at_;
    while (true) {
      if (!skip_to_content()) fail("the list is not closed by ']'");
      if (peek() == ']') break;
      values.push_back(parse_value());
      if (!skip_to_content()) fail("the list is not closed by ']'");
      if (peek() == ',') {
        ++at_;
      } else if (peek() != ']') {
        fail(fmt::format("expected ',' or ']' in the list, found '{}'", rest_of_line()));
      }
    }
    ++at_;
    return values;
  }

  std::string parse_value() {
    if (peek() == '"') return parse_quoted();
    if (peek() == '\'') return parse_literal();
    const size_t begin = at_;
    while (std::strchr(" \t\r\n,]#\"'[={}", peek()) == nullptr) ++at_;
    if (begin == at_) fail("expected a value");
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string parse_quoted() {
    std::string value;
    ++at_;
    while (peek() != '"') {
      if (peek() == '\n') fail("the string is not closed by '\"'");
      char c = text_[at_++];
      if (c == '\\') c = parse_escape();
      value += c;
    }
    ++at_;
    return value;
  }

  /// What stands behind a backslash.
  char parse_escape() {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
        return c;
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'u':
        return parse_code_point();
      default:
        fail("unknown escape in a string; '...' takes backslashes as they are");
    }
  }

  /// Four hexadecimal digits. Only control characters need it: anything else stands in a deck as UTF-8.
  char parse_code_point() {
    const std::string digits(text_.substr(std::min(at_, text_.size()), 4));
    unsigned code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc{} || end != digits.data() + 4 || code == 0 || code > 0x7f) {
      fail("'\\u' takes four digits, from 0001 to 007f");
    }
    at_ += 4;
    return static_cast<char>(code);
  }

  std::string parse_literal() {
    const size_t begin = ++at_;
    while (peek() != '\'') {
      if (peek() == '\n') fail("the string is not closed by \"'\"");
      ++at_;
    }
    return std::string(text_.substr(begin, at_++ - begin));
  }

  std::string_view text_;
  std::string name_;
  size_t at_ = 0;
  int line_ = 1;
  std::string section_;
  std::string key_;  // being read, for error messages
  std::map<std::string, int> lines_;
  std::vector<DeckEntry> entries_;
};

}  // namespace

std::vector<DeckEntry> parse_deck(std::string_view text, const std::string& name) {
  return DeckParser(text, name).parse();
}

std::string read_deck_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw InputError(name, "", "no such deck file");
  if (std::filesystem::is_directory(status)) throw InputError(name, "", "is a folder, not a deck file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(name, "", fmt::format("cannot be read: {}", std::strerror(errno)));
  std::string text(kLargestDeck + 1, '\0');
  file.read(text.data(), std::ssize(text));
  if (file.bad()) throw InputError(name, "", "cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.starts_with("\x89HDF\r\n")) throw InputError(name, "", "is an HDF5 file, not a deck file");
  if (text.size() > kLargestDeck) throw InputError(name, "", "is too large for a deck file (more than 1 MiB)");
  const bool is_binary = std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f;
  });
  if (is_binary) throw InputError(name, "", "is not a text file");
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  return text;
}

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        quoted += '\\';
        quoted += c;
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\r':
        quoted += "\\r";
        break;
      default:
        if ((static_cast<unsigned char>(c) < 0x20) || c == 0x7f) {
          quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          quoted += c;
        }
    }
  }
  return quoted + '"';
}

}  // namespace hat
