#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "hat/ledger/partition.hpp"
#include "hat/ledger/unit_cost_model.hpp"

namespace hat {
namespace {

std::vector<Sequence> unit_of_lengths(const std::vector<int64_t>& lengths) {
  std::vector<Sequence> unit;
  unit.reserve(lengths.size());
  for (const int64_t length : lengths) unit.push_back({.length = length});
  return unit;
}

TEST(UnitCostModel, KnowsOnlyFlopAtFirst) {
  UnitCostModel model(2, 0.001);
  EXPECT_FALSE(model.knows_seconds());
  EXPECT_DOUBLE_EQ(model.seconds(0, {.tokens = 100, .area = 10'000}), 110);
  EXPECT_TRUE(std::isnan(model.relative_error(0)));
}

TEST(UnitCostModel, LeavesTheFirstUnitOut) {
  UnitCostModel model(2, 0.001);
  const UnitSize unit = size_of(unit_of_lengths({600}));
  model.observe(0, unit, 50.0);
  EXPECT_FALSE(model.knows_seconds());
  model.observe(0, unit, 1.0);
  EXPECT_NEAR(model.seconds(0, unit), 1.0, 1e-6);
}

// The device's own ratio of attention to the rest differs from the FLOP count's, and every unit has a fixed part.
TEST(UnitCostModel, LearnsWhatUnitsTake) {
  UnitCostModel model(1, 0.001);
  std::mt19937 random(3);
  const auto seconds_of = [](const UnitSize& unit) { return 0.004 + 2e-5 * unit.tokens + 5e-9 * unit.area; };
  std::uniform_int_distribution<int64_t> length(32, 4096);
  for (int i = 0; i < 60; ++i) {
    const UnitSize unit = size_of(unit_of_lengths(std::vector<int64_t>(1 + i % 3, length(random))));
    model.observe(0, unit, seconds_of(unit));
  }
  for (const int64_t n : {64, 512, 2000, 4000}) {
    const UnitSize unit = size_of(unit_of_lengths({n}));
    EXPECT_NEAR(model.seconds(0, unit) / seconds_of(unit), 1, 0.05) << n << " tokens";
  }
  EXPECT_LT(model.relative_error(0), 0.05);
}

TEST(UnitCostModel, FollowsADeviceThatBecomesSlower) {
  UnitCostModel model(2, 0.001);
  const UnitSize unit = size_of(unit_of_lengths({600}));
  for (int i = 0; i < 50; ++i) model.observe(0, unit, 1.0);
  EXPECT_NEAR(model.seconds(0, unit), 1.0, 0.01);
  EXPECT_NEAR(model.seconds(1, unit), 1.0, 0.01) << "of which nothing is known: as the others";
  for (int i = 0; i < 100; ++i) model.observe(0, unit, 2.0);
  EXPECT_NEAR(model.seconds(0, unit), 2.0, 0.1);
}

// A clock that jumped: once is nothing, the first time that counts little.
TEST(UnitCostModel, SecondsThatAreWrongOnceDoNotRuleIt) {
  const UnitSize unit = size_of(unit_of_lengths({600}));
  for (const int wrong : {1, 2, 20}) {
    UnitCostModel model(2, 0.001);
    for (int i = 0; i < 10; ++i) model.observe(1, unit, 1.0);
    for (int i = 0; i < 25; ++i) {
      model.observe(0, unit, i == wrong ? 0.001 : 1.0);
      if (i == 0) continue;
      EXPECT_GE(model.seconds(0, unit), 0.08) << "nobody is ten times as fast as the average: unit " << i;
      EXPECT_LE(model.seconds(0, unit), 1.01);
    }
    EXPECT_GT(model.seconds(0, unit), 0.75) << "soon forgotten, unit " << wrong;
  }
}

TEST(UnitCostModel, NoNegativeTimes) {
  UnitCostModel model(1, 1e-4);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.5, 1.5);
  for (int i = 0; i < 40; ++i) {
    const UnitSize unit = size_of(unit_of_lengths({i % 2 == 0 ? 30 : 8000}));
    model.observe(0, unit, noise(random) * 1e-5 * (unit.tokens + 1e-4 * unit.area));
    for (const int64_t n : {1, 100, 10'000}) EXPECT_GT(model.seconds(0, size_of(unit_of_lengths({n}))), 0) << n;
  }
}

// The ratio of Karmarkar and Karp's own example, and what any split must have.
TEST(BalancedPartition, EveryItemOnceAndNearlyEqualSums) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> size(0, 1);
  for (const size_t parts : {1U, 2U, 5U, 16U}) {
    for (const size_t count : {0U, 1U, 7U, 128U}) {
      std::vector<double> costs(count);
      std::ranges::generate(costs, [&] { return size(random); });
      const auto sets = balanced_partition(costs, parts);
      ASSERT_EQ(sets.size(), parts);
      std::vector<int> seen(count, 0);
      double most = 0;
      for (const auto& set : sets) {
        double sum = 0;
        for (const size_t i : set) {
          ++seen[i];
          sum += costs[i];
        }
        most = std::max(most, sum);
      }
      EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
      const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
      const double largest = costs.empty() ? 0.0 : *std::ranges::max_element(costs);
      const double least = std::max(total / static_cast<double>(parts), largest);
      if (count == 128) {
        EXPECT_LE(most, 1.02 * least) << parts << " parts";
      }
    }
  }
  // More sets than items: the others are empty.
  const auto sparse = balanced_partition(std::vector<double>{3, 5, 4}, 6);
  EXPECT_EQ(sparse, (std::vector<std::vector<size_t>>{{1}, {2}, {0}, {}, {}, {}}));
  const auto two = balanced_partition(std::vector<double>{8, 7, 6, 5, 4}, 2);
  const auto sum = [&](const std::vector<size_t>& set) {
    const std::vector<double> costs{8, 7, 6, 5, 4};
    double total = 0;
    for (const size_t i : set) total += costs[i];
    return total;
  };
  EXPECT_EQ(std::abs(sum(two[0]) - sum(two[1])), 2) << "their example: 16 and 14";
}

}  // namespace
}  // namespace hat
