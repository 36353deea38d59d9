#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

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

}  // namespace hat
