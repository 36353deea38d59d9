#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "hat/commands/benchmark.hpp"

namespace hat {
namespace {

TEST(Spread, OfOddAndEvenNumbers) {
  const Spread odd = spread_of({5.0, 1.0, 3.0});
  EXPECT_EQ(odd.median, 3.0);
  EXPECT_EQ(odd.least, 1.0);
  EXPECT_EQ(odd.most, 5.0);
  const Spread even = spread_of({4.0, 1.0, 2.0, 9.0});
  EXPECT_EQ(even.median, 3.0);
  EXPECT_EQ(even.least, 1.0);
  EXPECT_EQ(even.most, 9.0);
  EXPECT_EQ(spread_of({7.0}).median, 7.0);
}

TEST(FixedLengths, ReachTheTokens) {
  EXPECT_EQ(fixed_lengths(4096, 1024), (std::vector<int64_t>{1024, 1024, 1024, 1024}));
  EXPECT_EQ(fixed_lengths(4097, 1024).size(), 5U);
  EXPECT_EQ(fixed_lengths(1, 1024), (std::vector<int64_t>{1024}));
}

double share_within(const std::vector<int64_t>& lengths, int64_t shortest, int64_t longest) {
  const auto inside = std::count_if(lengths.begin(), lengths.end(),
                                    [&](int64_t length) { return length >= shortest && length <= longest; });
  return static_cast<double>(inside) / static_cast<double>(lengths.size());
}

TEST(LongTailLengths, HaveTheirShares) {
  const std::vector<int64_t> lengths = long_tail_lengths(20'000'000, 1);
  ASSERT_GT(lengths.size(), 10'000U);
  EXPECT_NEAR(share_within(lengths, 32, 511), 0.62, 0.015);  // three standard deviations of 10,000 draws
  EXPECT_NEAR(share_within(lengths, 512, 2047), 0.28, 0.015);
  EXPECT_NEAR(share_within(lengths, 2048, 8192), 0.10, 0.01);
  EXPECT_EQ(share_within(lengths, 32, 8192), 1.0);
  // Mean of 62 % around 271.5, 28 % around 1279.5, 10 % around 5120.
  const double mean = std::accumulate(lengths.begin(), lengths.end(), 0.0) / static_cast<double>(lengths.size());
  EXPECT_NEAR(mean, 1038.6, 50.0);
}

TEST(LongTailLengths, AreWholeDocumentsUpToTheTokens) {
  for (const int64_t tokens : {1, 4096, 100'000}) {
    const std::vector<int64_t> lengths = long_tail_lengths(tokens, 3);
    const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    EXPECT_GE(sum, tokens);
    EXPECT_LT(sum - lengths.back(), tokens);
  }
}

TEST(LongTailLengths, FollowTheSeed) {
  EXPECT_EQ(long_tail_lengths(100'000, 5), long_tail_lengths(100'000, 5));
  EXPECT_NE(long_tail_lengths(100'000, 5), long_tail_lengths(100'000, 6));
}

TEST(LongTailDocuments, EndWhereTheyAreToldTo) {
  const std::vector<int64_t> lengths = long_tail_documents(20'000, 32768, 1);
  ASSERT_EQ(lengths.size(), 20'000U);
  EXPECT_NEAR(share_within(lengths, 2048, 32768), 0.10, 0.007);
  EXPECT_GT(*std::max_element(lengths.begin(), lengths.end()), 32000);
  const double mean = std::accumulate(lengths.begin(), lengths.end(), 0.0) / 20'000.0;
  EXPECT_NEAR(long_tail_mean(32768), 0.62 * 271.5 + 0.28 * 1279.5 + 0.1 * 17408, 1e-9);
  EXPECT_NEAR(mean, long_tail_mean(32768), 150.0);  // three standard deviations
  EXPECT_EQ(scaled_down({8192, 40, 3, 24}, 16), (std::vector<int64_t>{512, 3, 2, 2}));
}

}  // namespace
}  // namespace hat
