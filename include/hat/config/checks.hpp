#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace hat {

/// Checks for OptionSet keys: `options.add("batch_tokens", value, "...")->check(integer_in(1, 1 << 30))`.
/// Stricter than CLI11's: decimal digits only (no octal "010"), no "nan", nothing behind the number.

/// Most steps or tokens of a key: beyond anything a run lives to see.
inline constexpr int64_t kMany = 1'000'000'000'000;

/// An integer from `least` to `most`, both included.
CLI::Validator integer_in(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());

/// A time span (core/duration.hpp).
CLI::Validator time_span();

/// "true" or "false", of a flag: --json=true.
CLI::Validator true_or_false();

/// Which ends of a range of real numbers belong to it.
enum class Ends { both, without_least, without_most, neither };

/// A finite real number from `least` to `most`.
CLI::Validator real_in(double least, double most, Ends ends = Ends::both);

}  // namespace hat
