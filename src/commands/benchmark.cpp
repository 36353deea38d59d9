#include "hat/commands/benchmark.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "hat/core/random.hpp"

namespace hat {

namespace {

struct Class {
  double up_to;  // share of the documents in this class and the ones before
  int64_t shortest;
  int64_t longest;
};
constexpr std::array<Class, 3> kClasses{{{0.62, 32, 511}, {0.90, 512, 2047}, {1.00, 2048, 8192}}};

/// End of a class when the last one ends at `longest`.
int64_t end_of(const Class& found, int64_t longest) { return &found == &kClasses.back() ? longest : found.longest; }

int64_t long_tail_length(uint64_t seed, uint64_t document, int64_t longest) {
  const double which = random_uniform(seed, 0, document);
  const Class& found = *std::find_if(kClasses.begin(), kClasses.end(), [&](const Class& c) { return which < c.up_to; });
  const auto choices = static_cast<uint64_t>(end_of(found, longest) - found.shortest + 1);
  return found.shortest + static_cast<int64_t>(random_below(seed, 1, document, choices));
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
  return {.median = median, .least = values.front(), .most = values.back()};
}

std::vector<int64_t> fixed_lengths(int64_t tokens, int64_t length) {
  return std::vector<int64_t>(static_cast<size_t>((tokens + length - 1) / length), length);
}

std::vector<int64_t> long_tail_lengths(int64_t tokens, uint64_t seed) {
  std::vector<int64_t> lengths;
  for (int64_t sum = 0; sum < tokens; sum += lengths.back()) {
    lengths.push_back(long_tail_length(seed, static_cast<uint64_t>(lengths.size()), kClasses.back().longest));
  }
  return lengths;
}

std::vector<int64_t> long_tail_documents(int64_t documents, int64_t longest, uint64_t seed) {
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < static_cast<uint64_t>(documents); ++i) lengths.push_back(long_tail_length(seed, i, longest));
  return lengths;
}

double long_tail_mean(int64_t longest) {
  double mean = 0;
  double before = 0;
  for (const Class& found : kClasses) {
    mean += (found.up_to - before) * 0.5 * static_cast<double>(found.shortest + end_of(found, longest));
    before = found.up_to;
  }
  return mean;
}

std::vector<int64_t> scaled_down(std::vector<int64_t> lengths, double scale) {
  for (int64_t& length : lengths) length = std::max<int64_t>(2, std::llround(static_cast<double>(length) / scale));
  return lengths;
}

}  // namespace hat
