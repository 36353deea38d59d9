#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "hat/core/random.hpp"
#include "hat/ledger/sequence_cut.hpp"

namespace hat::test {
namespace {

double cost(double area_weight, const UnitSize& size) { return size.tokens + area_weight * size.area; }

TEST(SequenceCut, SizesOfRangesAddUpToThatOfTheSequence) {
  UnitSize sum;
  for (int64_t member = 0; member < 4; ++member) {
    sum += size_of(GangRange{.bounds = {0, 1, 500, 501, 1000}, .member = member});
  }
  const UnitSize whole = size_of(Sequence{.length = 1000});
  EXPECT_EQ(sum.tokens, whole.tokens);
  EXPECT_EQ(sum.area, whole.area);
  EXPECT_EQ(size_of_range(0, 300).area, size_of(Sequence{.length = 300}).area);
  EXPECT_EQ(size_of_range(3, 5).area, 16);  // positions 3 and 4 see 4 and 5 keys: 2 * 4 - 1 + 2 * 5 - 1
}

TEST(SequenceCut, WithoutAreaRangesAreAsLongAsMembersAreFast) {
  EXPECT_EQ(equal_cost_bounds(100, 0.0, std::vector<double>{1, 1, 1, 1}), (std::vector<int64_t>{0, 25, 50, 75, 100}));
  EXPECT_EQ(equal_cost_bounds(100, 0.0, std::vector<double>{1, 3}), (std::vector<int64_t>{0, 25, 100}));
}

TEST(SequenceCut, WithAreaAloneBoundsAreAtRootsOfShares) {
  const std::vector<int64_t> bounds = equal_cost_bounds(10000, 1e6, std::vector<double>{1, 1, 1, 1});
  EXPECT_EQ(bounds, (std::vector<int64_t>{0, 5000, 7071, 8660, 10000}));
}

// Whatever length, weight and speeds: all times are the same but for a token's worth at either end.
TEST(SequenceCut, RangesCostTheSameButForRounding) {
  for (uint64_t i = 0; i < 500; ++i) {
    const auto pick = [&](uint64_t what, uint64_t below) {
      return static_cast<int64_t>(random_below(7, i, what, below));
    };
    const int64_t length = 1000 + pick(0, 100000);
    const double weight = std::pow(10.0, -1.0 - static_cast<double>(pick(1, 6)));
    std::vector<double> speeds;
    for (int64_t m = 0; m < 1 + pick(2, 8); ++m)
      speeds.push_back(1.0 + 3.0 * random_uniform(8, i, static_cast<uint64_t>(m)));
    const std::vector<int64_t> bounds = equal_cost_bounds(length, weight, speeds);
    ASSERT_EQ(bounds.size(), speeds.size() + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), length);
    const double time = cost(weight, size_of_range(0, length)) / std::accumulate(speeds.begin(), speeds.end(), 0.0);
    for (size_t m = 0; m < speeds.size(); ++m) {
      const double rounding = (cost(weight, size_of_range(bounds[m], bounds[m] + 1)) +
                               cost(weight, size_of_range(bounds[m + 1] - 1, bounds[m + 1] + 1))) /
                              2;
      EXPECT_NEAR(cost(weight, size_of_range(bounds[m], bounds[m + 1])), time * speeds[m], 1.01 * rounding);
    }
  }
}

TEST(SequenceCut, NoRangeIsEmpty) {
  for (const int64_t members : {1, 2, 3, 7, 16}) {
    for (const double fastest : {1.0, 1e6}) {
      for (const size_t who : {size_t{0}, static_cast<size_t>(members) / 2, static_cast<size_t>(members) - 1}) {
        std::vector<double> speeds(static_cast<size_t>(members), 1.0);
        speeds[who] = fastest;
        for (int64_t length = 1; length < 40; ++length) {
          const std::vector<int64_t> bounds = equal_cost_bounds(length, 1e-3, speeds);
          EXPECT_EQ(std::ssize(bounds), std::min(members, length) + 1);
          EXPECT_EQ(bounds.front(), 0);
          EXPECT_EQ(bounds.back(), length);
          EXPECT_EQ(std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()), bounds.end());
        }
      }
    }
  }
}

}  // namespace
}  // namespace hat::test
