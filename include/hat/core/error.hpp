#pragma once
#include <fmt/format.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hat {

/// Exit codes of the executable.
enum class ExitCode : int {
  success = 0,
  failure = 1,    ///< something went wrong while running (message names rank and reason)
  bad_input = 2,  ///< deck, dataset, checkpoint, flag or environment is wrong; nothing was written
};

/// Something failed while running. The message is one line.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bad input from the user: one line "<where>: <what>: <reason>", where `where` is a file, "command line" or
/// "environment", and `what` the key, dataset or attribute (may be empty).
class InputError : public Error {
 public:
  /// `line` as a whole.
  explicit InputError(const std::string& line) : Error(line) {}
  InputError(std::string_view where, std::string_view what, std::string_view reason)
      : Error(what.empty() ? fmt::format("{}: {}", where, reason) : fmt::format("{}: {}: {}", where, what, reason)) {}
};

/// Something is wrong with the value of a deck key, found where nobody knows whether a deck, the environment or the
/// command line has set it. Whoever knows names that place instead (OptionSet::error, KeyBlame); until then the line is
/// "<key>: <reason>".
class KeyError : public InputError {
 public:
  /// `key`: as in a deck, or a section of it ("model"). `causes`: other keys that make the value wrong.
  KeyError(std::string key, std::string reason, std::vector<std::string> causes = {})
      : InputError(key, "", reason), key_(std::move(key)), reason_(std::move(reason)), causes_(std::move(causes)) {}

  const std::string& key() const { return key_; }
  const std::string& reason() const { return reason_; }
  const std::vector<std::string>& causes() const { return causes_; }

 private:
  std::string key_;
  std::string reason_;
  std::vector<std::string> causes_;
};

/// The same error, naming where the key was set.
using KeyBlame = std::function<InputError(const KeyError&)>;

}  // namespace hat
