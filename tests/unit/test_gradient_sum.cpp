#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "hat/core/error.hpp"
#include "hat/core/random.hpp"
#include "hat/gradient/gradient_sum.hpp"

namespace hat {
namespace {

constexpr int64_t kCount = 101;

/// One push: elements [begin, begin + values.size()) of the gradient of the unit at `place`.
struct Push {
  int64_t begin;
  std::vector<float> values;
  int64_t tokens;
  int64_t place;
};

/// Units with 1, 2, ... target tokens; every unit's gradient cut into `chunks` pushes.
std::vector<Push> pushes_of(int64_t units, int64_t chunks) {
  std::vector<Push> pushes;
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      Push push{.begin = kCount * chunk / chunks, .values = {}, .tokens = unit + 1, .place = unit};
      for (int64_t i = push.begin; i < kCount * (chunk + 1) / chunks; ++i) {
        // Widely different magnitudes, so that the order of adding shows in the bits.
        const double magnitude = std::pow(10.0, static_cast<double>(unit % 5));
        push.values.push_back(
            static_cast<float>(magnitude * random_normal(3, static_cast<uint64_t>(unit), static_cast<uint64_t>(i))));
      }
      pushes.push_back(std::move(push));
    }
  }
  return pushes;
}

int64_t tokens_of(int64_t units) { return units * (units + 1) / 2; }

/// Adds in the given order; complete must become true with the last push, not before.
std::vector<float> sum_of(const std::vector<Push>& pushes, int64_t units, AddingOrder order) {
  GradientSum sum(kCount, tokens_of(units), order);
  EXPECT_EQ(sum.step_tokens(), tokens_of(units));
  for (const Push& push : pushes) {
    EXPECT_FALSE(sum.complete());
    sum.add(push.begin, push.values, push.tokens, push.place);
  }
  EXPECT_TRUE(sum.complete());
  return {sum.sum(), sum.sum() + kCount};
}

std::vector<double> exact_sum(const std::vector<Push>& pushes) {
  std::vector<double> exact(kCount, 0.0);
  for (const Push& push : pushes) {
    for (size_t i = 0; i < push.values.size(); ++i) exact[static_cast<size_t>(push.begin) + i] += push.values[i];
  }
  return exact;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(GradientSum, AddsEverything) {
  for (const AddingOrder order : {AddingOrder::arrival, AddingOrder::by_unit}) {
    for (const int64_t chunks : {1, 3}) {
      const std::vector<Push> pushes = pushes_of(9, chunks);
      const std::vector<float> sum = sum_of(pushes, 9, order);
      const std::vector<double> exact = exact_sum(pushes);
      for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], exact[i], 1e-2) << i;
    }
  }
}

TEST(GradientSum, ByUnitGivesTheSameBitsForEveryArrivalOrder) {
  for (const int64_t chunks : {1, 2, 5}) {
    std::vector<Push> pushes = pushes_of(9, chunks);
    const std::vector<float> expected = sum_of(pushes, 9, AddingOrder::by_unit);
    std::vector<float> in_unit_order(kCount, 0.0F);
    for (const Push& push : pushes) {
      for (size_t i = 0; i < push.values.size(); ++i)
        in_unit_order[static_cast<size_t>(push.begin) + i] += push.values[i];
    }
    EXPECT_TRUE(same_bits(expected, in_unit_order));
    bool arrival_differs = false;
    for (unsigned seed = 0; seed < 60; ++seed) {
      std::shuffle(pushes.begin(), pushes.end(), std::mt19937(seed));
      EXPECT_TRUE(same_bits(sum_of(pushes, 9, AddingOrder::by_unit), expected)) << "seed " << seed;
      arrival_differs = arrival_differs || !same_bits(sum_of(pushes, 9, AddingOrder::arrival), expected);
    }
    EXPECT_TRUE(arrival_differs) << "the values of this test do not show the order";
  }
}

TEST(GradientSum, ArrivalAddsInTheOrderOfComing) {
  std::vector<Push> pushes = pushes_of(9, 1);
  std::reverse(pushes.begin(), pushes.end());
  std::vector<float> expected(kCount, 0.0F);
  for (const Push& push : pushes) {
    for (size_t i = 0; i < push.values.size(); ++i) expected[i] += push.values[i];
  }
  EXPECT_TRUE(same_bits(sum_of(pushes, 9, AddingOrder::arrival), expected));
}

// A barrier block: each worker pushes its share of the whole step's sum.
TEST(GradientSum, WholeSumsCompleteTheirElements) {
  for (const AddingOrder order : {AddingOrder::arrival, AddingOrder::by_unit}) {
    GradientSum sum(10, 77, order);
    sum.set(4, std::vector<float>(6, 2.0F));
    EXPECT_FALSE(sum.complete());
    sum.set(0, std::vector<float>(4, 1.0F));
    EXPECT_TRUE(sum.complete());
    EXPECT_EQ(std::vector<float>(sum.sum(), sum.sum() + 10), (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2, 2, 2}));
  }
}

TEST(GradientSum, APushOfNoTokensCompletesNothing) {
  GradientSum sum(2, 5, AddingOrder::arrival);
  sum.add(0, std::vector<float>{0.0F, 0.0F}, 0, 0);
  EXPECT_FALSE(sum.complete());
  sum.add(0, std::vector<float>{1.0F, 2.0F}, 5, 1);
  EXPECT_TRUE(sum.complete());
}

TEST(GradientSum, MoreThanTheStepIsRefused) {
  const std::vector<float> values(4, 1.0F);
  GradientSum arrival(4, 10, AddingOrder::arrival);
  arrival.add(0, values, 7, 0);
  EXPECT_THROW(arrival.add(0, values, 4, 1), Error);
  GradientSum twice(4, 10, AddingOrder::arrival);
  twice.set(0, values);
  EXPECT_THROW(twice.set(0, values), Error);
  GradientSum by_unit(4, 10, AddingOrder::by_unit);
  by_unit.add(0, values, 7, 0);
  EXPECT_THROW(by_unit.add(0, values, 4, 1), Error);
}

// Its turn is over: waiting for it to come again would wait for ever.
TEST(GradientSum, AUnitThatWasAddedIsRefused) {
  const std::vector<float> values(4, 1.0F);
  GradientSum sum(4, 10, AddingOrder::by_unit);
  sum.add(0, values, 3, 0);
  EXPECT_THROW(sum.add(0, values, 3, 0), Error);
}

}  // namespace
}  // namespace hat
