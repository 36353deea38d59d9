#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "hat/commands/policy_simulation.hpp"

namespace hat {
namespace {

/// The generator of Python's random.Random(seed), so that the sequences are those of shared/sim: Mersenne Twister
/// MT19937 (Matsumoto, Nishimura 1998) seeded by its init_by_array with the one word of a small seed.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed) {
    state_[0] = 19650218U;
    for (uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
    uint32_t i = 1;
    for (uint32_t k = 0; k < kWords; ++k) {
      state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + seed;
      if (++i == kWords) state_[0] = state_[kWords - 1], i = 1;
    }
    for (uint32_t k = 0; k < kWords - 1; ++k) {
      state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - i;
      if (++i == kWords) state_[0] = state_[kWords - 1], i = 1;
    }
    state_[0] = 0x80000000U;
  }
  double uniform() {
    const uint32_t high = next() >> 5;
    const uint32_t low = next() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }
  int64_t between(int64_t least, int64_t most) {
    const auto choices = static_cast<uint64_t>(most - least + 1);
    int bits = 0;
    while ((choices >> bits) > 0) ++bits;
    uint64_t drawn = choices;
    while (drawn >= choices) drawn = next() >> (32 - bits);
    return least + static_cast<int64_t>(drawn);
  }

 private:
  static constexpr uint32_t kWords = 624;
  uint32_t next() {
    if (at_ == kWords) {
      for (uint32_t i = 0; i < kWords; ++i) {
        const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7fffffffU);
        state_[i] = state_[(i + 397) % kWords] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908b0dfU : 0U);
      }
      at_ = 0;
    }
    uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
  }
  std::array<uint32_t, kWords> state_{};
  uint32_t at_ = kWords;
};

constexpr int kWorkers = 16;

/// 400 steps of 62 / 28 / 10 % of lengths in 32-511 / 512-2047 / 2048-`longest`, at the cost of GPT-2 124M.
StepCosts article_steps(int64_t per_worker, int64_t longest) {
  PythonRandom random(static_cast<uint32_t>(per_worker));
  StepCosts steps(400);
  for (std::vector<double>& costs : steps) {
    for (int64_t i = 0; i < kWorkers * per_worker; ++i) {
      const double u = random.uniform();
      const int64_t n = u < .62   ? random.between(32, 511)
                        : u < .90 ? random.between(512, 2047)
                                  : random.between(2048, longest);
      const auto length = static_cast<double>(n);
      costs.push_back(length * (1 + length / 13500));
    }
  }
  return steps;
}

double percent_of(const StepCosts& steps, double seconds) { return 100 * total_cost(steps) / (kWorkers * seconds); }

const std::vector<double> kEqualSpeeds(kWorkers, 1.0);

// The table of facts.md, "What each way of handing out work can give at best", with the decimal that policy_sim.py
// prints (facts.md has it rounded to whole percents).
TEST(PolicySimulation, GivesTheTableOfFacts) {
  struct Row {
    int64_t per_worker;
    double balanced;
    std::array<double, 4> on_demand;  // S = 0, 1, 2, 4
  };
  for (const Row& row : {Row{1, 17.1, {17.1, 30.1, 41.2, 62.5}}, Row{2, 26.9, {26.9, 50.5, 72.7, 98.2}},
                         Row{4, 46.5, {46.5, 88.4, 99.7, 99.8}}, Row{8, 84.0, {84.0, 100.0, 100.0, 100.0}}}) {
    const StepCosts steps = article_steps(row.per_worker, 8192);
    EXPECT_NEAR(percent_of(steps, balanced_sync_seconds(steps, kEqualSpeeds)), row.balanced, 0.0501) << row.per_worker;
    size_t column = 0;
    for (const int64_t staleness : {0, 1, 2, 4}) {
      EXPECT_NEAR(percent_of(steps, on_demand_seconds(steps, kEqualSpeeds, staleness)), row.on_demand[column++], 0.0501)
          << row.per_worker << " sequences, S = " << staleness;
    }
  }
}

// Equal counts: there worker i has a run of sequences, here every 16th, so the sums agree only in the mean.
TEST(PolicySimulation, StaticSyncIsNearTheTableOfFacts) {
  for (const auto& [per_worker, percent] : {std::pair{1, 17.0}, {2, 24.0}, {4, 33.0}, {8, 43.0}}) {
    const StepCosts steps = article_steps(per_worker, 8192);
    EXPECT_NEAR(percent_of(steps, static_sync_seconds(steps, kEqualSpeeds)), percent, 1.0) << per_worker;
  }
}

// "Unsplit at S = 1 with a barrier (S = 0) on one block at relative depth f": none, 0, 0.25, 0.5, 0.75, 1.
TEST(PolicySimulation, GivesTheTableOfBarrierDepths) {
  struct Row {
    int64_t per_worker;
    std::array<double, 6> percents;
  };
  for (const Row& row :
       {Row{2, {50, 27, 36, 48, 50, 50}}, Row{4, {88, 47, 62, 84, 88, 88}}, Row{8, {100, 84, 97, 100, 100, 100}}}) {
    const StepCosts steps = article_steps(row.per_worker, 8192);
    EXPECT_NEAR(percent_of(steps, on_demand_seconds(steps, kEqualSpeeds, 1)), row.percents[0], 0.51);
    for (size_t i = 1; i < row.percents.size(); ++i) {
      const double depth = 0.25 * static_cast<double>(i - 1);
      EXPECT_NEAR(percent_of(steps, on_demand_seconds(steps, kEqualSpeeds, 1, depth)), row.percents[i], 0.51)
          << row.per_worker << " sequences, depth " << depth;
    }
  }
}

// By hand: workers of speed 1 and 2. Step 0: the long one (4) goes to the first free, worker 0, until 4; worker 1 does
// 2 and 2 until 2. Step 1 with S = 0 starts at 4, with S = 1 worker 1 begins it at 2 and ends at 4.
TEST(PolicySimulation, SpeedsAndStalenessByHand) {
  const StepCosts steps{{4, 2, 2}, {4}};
  EXPECT_DOUBLE_EQ(on_demand_seconds(steps, {1, 2}, 1), 4);
  EXPECT_DOUBLE_EQ(on_demand_seconds(steps, {1, 2}, 0), 6);  // worker 1, free since 2, takes it at 4
  EXPECT_DOUBLE_EQ(static_sync_seconds(steps, {1, 1}), 10);  // 4 + 2, then 4
  EXPECT_DOUBLE_EQ(static_sync_seconds(steps, {2, 1}), 5);
  EXPECT_DOUBLE_EQ(balanced_sync_seconds(steps, {1, 1}), 8);
  EXPECT_DOUBLE_EQ(balanced_sync_seconds(steps, {1, 2}), 8);  // the long ones are the slow worker's
}

// The largest of two equals in distribution: mean 1 + 2 / sqrt(pi) * sigma / 2 for small sigma.
TEST(PolicySimulation, SlowestFactor) {
  EXPECT_DOUBLE_EQ(mean_slowest_factor(16, 0), 1);
  EXPECT_NEAR(mean_slowest_factor(2, 0.05), 1 + 0.05 / std::sqrt(3.14159265), 0.002);
  EXPECT_NEAR(mean_slowest_factor(16, 0.05), 1 + 0.05 * 1.766, 0.005);  // 1.766: mean largest of 16 normals
}

}  // namespace
}  // namespace hat
