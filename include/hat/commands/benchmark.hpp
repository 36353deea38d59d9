#pragma once
#include <cstdint>
#include <vector>

namespace hat {

/// What several runs of the same work took.
struct Spread {
  double median = 0.0;  ///< mean of the two in the middle when there is an even number
  double least = 0.0;
  double most = 0.0;
};

/// `values` must not be empty.
Spread spread_of(std::vector<double> values);

/// Documents of `length` tokens each, as many as are needed for `tokens` tokens together.
std::vector<int64_t> fixed_lengths(int64_t tokens, int64_t length);

/// Lengths of documents as a text corpus has them: 62 % uniform in 32..511, 28 % in 512..2047, 10 % in 2048..8192,
/// until they have `tokens` tokens together (the last document stays whole). Equal seeds give equal lengths.
std::vector<int64_t> long_tail_lengths(int64_t tokens, uint64_t seed);

/// So many lengths of that distribution; the longest class ends at `longest`, at least 2048.
std::vector<int64_t> long_tail_documents(int64_t documents, int64_t longest, uint64_t seed);

/// Of that distribution, in tokens.
double long_tail_mean(int64_t longest);

/// Lengths divided by `scale`, rounded, at least 2 (a token of text and end-of-text).
std::vector<int64_t> scaled_down(std::vector<int64_t> lengths, double scale);

}  // namespace hat
