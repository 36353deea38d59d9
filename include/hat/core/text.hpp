#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hat {

/// The candidate closest to `word` by edit distance (insert, delete, replace, swap of neighbours), or "" when none is
/// close enough to be what was meant (distance above max(2, length / 3)).
std::string closest_match(std::string_view word, const std::vector<std::string>& candidates);

/// "3.4 MB", "12.0 GiB"-style sizes: powers of 1000.
std::string human_bytes(int64_t size_bytes);

/// 12345678 -> "12,345,678".
std::string with_commas(int64_t value);

/// "1 worker", "3 workers": a count of what `noun` names.
std::string counted(int64_t count, std::string_view noun);

/// Glob match where '*' stands for any run of characters and '?' for one.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace hat
