#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hat/core/error.hpp"
#include "hat/kernels/operations.hpp"
#include "model_support.hpp"
#include "server/sensitivity.hpp"

namespace hat {
namespace {

using Values = std::vector<double>;

Values normal_values(int64_t n, uint64_t stream) {
  Values values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = random_normal(3, stream, i);
  return values;
}

Values combine(double a, const Values& x, double b, const Values& y) {
  Values result(x.size());
  for (size_t i = 0; i < x.size(); ++i) result[i] = a * x[i] + b * y[i];
  return result;
}

double inner(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const Values& a) { return std::sqrt(inner(a, a)); }

/// The sketch that a worker would send of the sum `tokens` times `mean`.
GradientSketch push_of(const Values& mean, int64_t tokens, int64_t worker = 0, int64_t step = 0, int64_t block = 0) {
  std::vector<float> sum(mean.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(mean[i] * static_cast<double>(tokens));
  GradientSketch push{.worker = worker,
                      .step = step,
                      .block = block,
                      .place = worker,
                      .tokens = tokens,
                      .sketch = std::vector<float>(static_cast<size_t>(kSketchBuckets))};
  operations(DeviceKind::cpu)
      .count_sketch(Stream{Device{}}, static_cast<int64_t>(sum.size()), sum.data(), push.sketch.data(),
                    &push.sum_of_squares);
  return push;
}

double squared_norm(const std::vector<float>& sketch) {
  double sum = 0;
  for (const float value : sketch) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// --- sketches ---

constexpr double kStandardError = 0.0442;  // sqrt(2 / 1024), of a squared norm

// Shapes of gradients whose sketch would be worst if buckets went by columns: energy in a few columns, in a few rows.
TEST(CountSketch, NormsHaveTheStandardErrorThatIsPromised) {
  constexpr int64_t kColumns = 2048;
  constexpr int kSamples = 200;
  for (const char* shape : {"even", "columns", "rows"}) {
    double mean = 0;
    double squares = 0;
    for (int sample = 0; sample < kSamples; ++sample) {
      Values x = normal_values(16 * kColumns + 77, static_cast<uint64_t>(sample));
      for (size_t i = 0; i < x.size(); ++i) {
        const auto shift = static_cast<size_t>(7 * sample);
        const bool strong =
            shape[0] == 'c' ? (i + shift) % kColumns < 3 : shape[0] == 'r' && (i + shift) / kColumns == 5;
        if (strong) x[i] *= 1000;
      }
      const GradientSketch push = push_of(x, 1);
      EXPECT_NEAR(push.sum_of_squares, inner(x, x), 1e-6 * inner(x, x));
      const double error = squared_norm(push.sketch) / inner(x, x) - 1;
      mean += error / kSamples;
      squares += error * error / kSamples;
    }
    // The mean of 200 errors has a 14th of their standard error; more than four of those is no accident.
    EXPECT_LT(std::abs(mean), 4 * kStandardError / 14) << shape;
    EXPECT_LT(std::sqrt(squares), 1.3 * kStandardError) << shape;
    EXPECT_GT(std::sqrt(squares), 1e-4) << shape << ": an estimate cannot be this good";
  }
}

TEST(CountSketch, IsLinearAndIndependentOfWhatFollows) {
  const Values x = normal_values(5000, 1);
  const Values y = normal_values(5000, 2);
  const GradientSketch a = push_of(x, 1);
  const GradientSketch b = push_of(y, 1);
  const GradientSketch sum = push_of(combine(1, x, -2, y), 1);
  for (size_t i = 0; i < sum.sketch.size(); ++i) EXPECT_NEAR(sum.sketch[i], a.sketch[i] - 2 * b.sketch[i], 1e-4);
  for (const int64_t n : {1, 31, 33, 1023, 1024, 1025}) {  // ends inside words and runs
    Values first(x.begin(), x.begin() + n);
    const GradientSketch cut = push_of(first, 1);
    EXPECT_NEAR(cut.sum_of_squares, inner(first, first), 1e-5 * inner(first, first)) << n;
    if (n <= kSketchBuckets) {
      EXPECT_NEAR(squared_norm(cut.sketch), cut.sum_of_squares, 1e-5 * cut.sum_of_squares) << "one value a bucket";
    }
    first.resize(x.size(), 0.0);
    EXPECT_EQ(push_of(first, 1).sketch, cut.sketch) << "zeros add nothing";
  }
}

// --- measures ---

TEST(SensitivityMeasures, AgreeWithExactNorms) {
  const int64_t n = 40000;
  const Values common = normal_values(n, 10);
  std::vector<Values> means;
  std::vector<GradientSketch> pushes;
  const std::vector<int64_t> tokens = {100, 37, 250, 61, 90};
  for (size_t i = 0; i < tokens.size(); ++i) {
    means.push_back(combine(1.0, common, 0.7, normal_values(n, 20 + i)));
    pushes.push_back(push_of(means.back(), tokens[i], static_cast<int64_t>(i)));
  }
  const Values before = combine(0.9, common, 0.5, normal_values(n, 30));

  double steps_between = 0;
  double norms = 0;
  double pairs = 0;
  double pair_weights = 0;
  double squares = 0;
  double all_tokens = 0;
  Values mean(static_cast<size_t>(n), 0.0);
  for (size_t i = 0; i < means.size(); ++i) {
    const auto weight = static_cast<double>(tokens[i]);
    if (i > 0) steps_between += norm(combine(1, means[i], -1, means[i - 1])) / 4;
    norms += norm(means[i]) / 5;
    for (size_t j = i + 1; j < means.size(); ++j) {
      const double pair_weight = weight * static_cast<double>(tokens[j]);
      const double distance = norm(combine(1, means[i], -1, means[j]));
      pairs += pair_weight * distance * distance;
      pair_weights += pair_weight;
    }
    squares += weight * inner(means[i], means[i]);
    all_tokens += weight;
    mean = combine(1, mean, weight, means[i]);
  }
  mean = combine(1 / all_tokens, mean, 0, mean);

  const BlockSensitivity result = measure_sensitivity(pushes, push_of(before, 1).sketch);
  const double tolerance = 0.07;  // three standard errors of a norm
  EXPECT_NEAR(result.article_pushes / steps_between, 1, tolerance);
  EXPECT_NEAR(result.consecutive / (steps_between / norms), 1, tolerance);
  EXPECT_NEAR(result.pairwise / std::sqrt(pairs / pair_weights / (squares / all_tokens)), 1, tolerance);
  EXPECT_NEAR(result.article_steps / norm(combine(1, mean, -1, before)), 1, tolerance);
}

TEST(SensitivityMeasures, ScaleFromAgreementToNothingInCommon) {
  const Values x = normal_values(20000, 1);
  const BlockSensitivity agree =
      measure_sensitivity(std::vector{push_of(x, 10, 0), push_of(x, 500, 1), push_of(x, 3, 2)}, {});
  EXPECT_LT(agree.consecutive, 1e-4);
  EXPECT_LT(agree.pairwise, 1e-4);
  EXPECT_TRUE(std::isnan(agree.article_steps)) << "no step before";
  const BlockSensitivity differ = measure_sensitivity(
      std::vector{push_of(x, 10, 0), push_of(normal_values(20000, 2), 20, 1), push_of(normal_values(20000, 3), 10, 2)},
      {});
  EXPECT_NEAR(differ.consecutive, std::sqrt(2.0), 0.1);
  EXPECT_NEAR(differ.pairwise, std::sqrt(2.0), 0.1);
}

TEST(SensitivityMeasures, AreUndefinedForFewerThanTwoPushes) {
  const BlockSensitivity one = measure_sensitivity(std::vector{push_of(normal_values(100, 1), 10)}, {});
  EXPECT_TRUE(std::isnan(one.consecutive));
  EXPECT_TRUE(std::isnan(one.pairwise));
  EXPECT_TRUE(std::isnan(one.article_pushes));
  const Values zero(100, 0.0);
  const BlockSensitivity zeros = measure_sensitivity(std::vector{push_of(zero, 10), push_of(zero, 10)}, {});
  EXPECT_TRUE(std::isnan(zeros.consecutive));
  EXPECT_TRUE(std::isnan(zeros.pairwise));
}

TEST(SensitivityMeasures, PushesAgainstTheOthersAreCounted) {
  const Values x = normal_values(20000, 1);
  const Values minus_x = combine(-1, x, 0, x);
  EXPECT_EQ(pushes_against_others(std::vector{push_of(x, 10), push_of(x, 9), push_of(minus_x, 7)}), 1);
  EXPECT_EQ(pushes_against_others(std::vector{push_of(x, 10), push_of(x, 5), push_of(x, 7)}), 0);
  EXPECT_EQ(pushes_against_others(std::vector{push_of(minus_x, 7)}), 0) << "no others";
}

// --- choice ---

constexpr int64_t kLookahead = 3;
constexpr int64_t kStepTokens = 90;

RunPlan plan_of(int64_t window, std::vector<std::string> barriers, int64_t first_step = 0) {
  Deck deck;
  deck.model = test::small_llama();
  deck.staleness = 1;
  deck.barriers = std::move(barriers);
  deck.sensitivity = {.threshold = 1.0, .window = window, .hysteresis = 0.3, .noise_block = ""};
  RunPlan plan = make_run_plan(deck, plan_roles({0, 0, 0, 0}, 1, Placement::packed));
  plan.first_step = first_step;
  plan.end_step = 1000;
  return plan;
}

/// Lets three workers push a step in which the gradients of `noisy` have nothing in common, all others agree, and
/// `middling` differ by `difference`.
void push_step(Sensitivity& sensitivity, const RunPlan& plan, int64_t step, int64_t noisy, double noise) {
  const auto blocks = static_cast<int64_t>(plan.layout.blocks.size());
  const Values common = normal_values(3000, 1);
  bool complete = false;
  for (int64_t worker = 2; worker >= 0; --worker) {  // the order of arrival does not count
    for (int64_t block = blocks - 1; block >= 0; --block) {
      EXPECT_FALSE(complete);
      const Values other = normal_values(3000, static_cast<uint64_t>(100 + 10 * step + worker));
      const Values mean = combine(1, common, block == noisy ? noise : 0.05, other);
      complete = sensitivity.add(push_of(mean, kStepTokens / 3, worker, step, block), kStepTokens);
    }
  }
  EXPECT_TRUE(complete);
}

/// What a worker learns that computes a unit in every step.
struct WorkerView {
  explicit WorkerView(const RunPlan& plan) : schedule(plan) {}
  void lease(Sensitivity& sensitivity, int64_t worker, LeaseKind kind, int64_t step) {
    Lease lease{.kind = kind, .step = step};
    sensitivity.tell(worker, lease);
    schedule.learn(lease.barrier_changes, lease.barriers_before);
  }
  BarrierSchedule schedule;
};

/// Runs `steps` steps, block `noisy` noisy in [from, to). The sets that a busy worker sees, by step, and that one sees
/// which has no unit until the end.
std::vector<std::vector<bool>> sets_of_run(const RunPlan& plan, int64_t steps, int64_t noisy, int64_t from,
                                           int64_t to) {
  Sensitivity sensitivity(plan, kLookahead);
  WorkerView busy(plan);
  WorkerView idle(plan);
  std::vector<std::vector<bool>> sets;
  int64_t leased = plan.first_step;
  for (int64_t step = plan.first_step; step < steps; ++step) {
    // As early as the ledger allows, and as late as it can be: the sets may not depend on it.
    const int64_t limit = step % 5 == 0 ? step + kLookahead : step + 1;
    for (; leased < limit; ++leased) busy.lease(sensitivity, 0, LeaseKind::train, leased);
    push_step(sensitivity, plan, step, noisy, step >= from && step < to ? 10.0 : 0.05);
    StepBlocks result;
    sensitivity.close(step, result);
    sets.push_back(result.is_barrier);
    EXPECT_EQ(result.pushes, std::vector<int64_t>(plan.layout.blocks.size(), 3));
  }
  idle.lease(sensitivity, 1, LeaseKind::none, steps);
  for (size_t i = 0; i < sets.size(); ++i) {
    for (size_t block = 0; block < plan.layout.blocks.size(); ++block) {
      const auto b = static_cast<int64_t>(block);
      const int64_t step = plan.first_step + static_cast<int64_t>(i);
      EXPECT_EQ(busy.schedule.is_barrier(b, step), sets[i][block]);
      EXPECT_EQ(idle.schedule.is_barrier(b, step), sets[i][block]);
      EXPECT_EQ(busy.schedule.oldest_version(b, step),
                sets[i][block] ? step : std::max(plan.first_step, step - plan.deck.staleness));
    }
  }
  return sets;
}

TEST(Sensitivity, ANoiseBurstMakesItsBlockABarrierBlockAndNoOther) {
  constexpr int64_t kFrom = 12;
  constexpr int64_t kTo = 24;
  for (const int64_t window : {1, 4}) {
    const RunPlan plan = plan_of(window, {"sensitivity"});
    const std::vector<std::vector<bool>> sets = sets_of_run(plan, 40, 2, kFrom, kTo);
    const auto first = std::ranges::find_if(sets, [](const auto& set) { return set[2]; }) - sets.begin();
    EXPECT_GE(first, kFrom + kLookahead) << "not before it was measured";
    EXPECT_LE(first, kFrom + kLookahead + window - 1) << "within the window";
    const auto count = std::ranges::count_if(sets, [](const auto& set) { return set[2]; });
    EXPECT_GE(first + count, kTo + kLookahead) << "for as long as it lasts";
    EXPECT_LE(first + count, kTo + kLookahead + window) << "and released afterwards";
    for (const std::vector<bool>& set : sets) EXPECT_LE(std::ranges::count(set, true), set[2] ? 1 : 0);
    EXPECT_EQ(std::ranges::adjacent_find(sets.begin() + first, sets.end(),
                                         [](const auto& a, const auto& b) { return !a[2] && b[2]; }),
              sets.end())
        << "once";
  }
}

TEST(Sensitivity, BlocksOfThePlanStayBarriers) {
  const RunPlan plan = plan_of(1, {"sensitivity", "head"});
  const size_t head = plan.layout.blocks.size() - 1;
  for (const std::vector<bool>& set : sets_of_run(plan, 20, 1, 4, 9)) EXPECT_TRUE(set[head]);
}

TEST(Sensitivity, AResumedRunBeginsWithTheBlocksOfThePlan) {
  const RunPlan plan = plan_of(2, {"sensitivity"}, 100);
  const std::vector<std::vector<bool>> sets = sets_of_run(plan, 112, 3, 100, 105);
  for (size_t i = 0; i < static_cast<size_t>(kLookahead) + 1; ++i) EXPECT_EQ(std::ranges::count(sets[i], true), 0) << i;
  EXPECT_TRUE(sets[static_cast<size_t>(kLookahead) + 1][3]);
}

// Between threshold (1 - hysteresis) and threshold a block stays what it is.
TEST(Sensitivity, HysteresisKeepsABlockWhatItIs) {
  const RunPlan plan = plan_of(1, {"sensitivity"});
  Sensitivity sensitivity(plan, kLookahead);
  WorkerView worker(plan);
  const auto run = [&](int64_t from, int64_t to, double noise) {
    for (int64_t step = from; step < to; ++step) {
      worker.lease(sensitivity, 0, LeaseKind::train, step);
      push_step(sensitivity, plan, step, 0, noise);
      StepBlocks result;
      sensitivity.close(step, result);
      if (step == from) {
        EXPECT_NEAR(result.sensitivity[0].consecutive, std::sqrt(2.0) * noise / std::sqrt(1 + noise * noise), 0.08);
      }
    }
  };
  run(0, 10, 0.8);  // consecutive 0.88
  EXPECT_FALSE(worker.schedule.is_barrier(0, 9));
  run(10, 20, 5.0);  // 1.39
  EXPECT_TRUE(worker.schedule.is_barrier(0, 19));
  run(20, 30, 0.8);
  EXPECT_TRUE(worker.schedule.is_barrier(0, 29)) << "below the threshold, but not by the hysteresis";
  run(30, 40, 0.3);  // 0.41
  EXPECT_FALSE(worker.schedule.is_barrier(0, 39));
}

TEST(Sensitivity, WhatCannotBeIsAnError) {
  const RunPlan plan = plan_of(1, {"sensitivity"});
  Sensitivity sensitivity(plan, kLookahead);
  const Values x = normal_values(100, 1);
  EXPECT_THROW(sensitivity.add(push_of(x, 10, 0, 0, 99), kStepTokens), Error);
  EXPECT_THROW(sensitivity.add(push_of(x, 91), kStepTokens), Error);
  Lease lease{.kind = LeaseKind::train, .step = kLookahead};  // step 0 is not committed
  EXPECT_THROW(sensitivity.tell(0, lease), Error);
  EXPECT_THROW(BarrierSchedule(plan).is_barrier(0, 5), Error) << "nobody may guess the set of a step";
}

TEST(Sensitivity, WithoutItLeasesCarryNothing) {
  const RunPlan plan = plan_of(1, {"upper"});
  Sensitivity sensitivity(plan, kLookahead);
  Lease lease{.kind = LeaseKind::train, .step = 50};
  sensitivity.tell(0, lease);
  EXPECT_TRUE(lease.barrier_changes.empty());
  const BarrierSchedule schedule(plan);
  EXPECT_TRUE(schedule.knows(1'000'000));
  for (int64_t block = 0; block < static_cast<int64_t>(plan.layout.blocks.size()); ++block) {
    EXPECT_EQ(schedule.is_barrier(block, 77), plan.is_barrier[static_cast<size_t>(block)]);
    EXPECT_EQ(schedule.oldest_version(block, 77), plan.oldest_version(block, 77));
  }
}

}  // namespace
}  // namespace hat
