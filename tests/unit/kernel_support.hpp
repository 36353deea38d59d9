#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hat/core/random.hpp"
#include "hat/kernels/operations.hpp"

/// What the tests of the kernels share.
namespace hat::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline constexpr double kTolerance = 2e-6;

inline Floats random_values(int64_t count, uint64_t stream, double amplitude = 1.0) {
  Floats values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(amplitude * (2.0 * random_uniform(17, stream, i) - 1.0));
  }
  return values;
}

/// norm(actual - expected) / norm(expected).
inline double distance(const Floats& actual, const Doubles& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - expected[i];
    difference += d * d;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

inline Doubles widen(const Floats& values) { return {values.begin(), values.end()}; }

/// Every test runs with one thread and with three: the results must be right with both.
class Kernels : public testing::TestWithParam<int> {
 protected:
  Stream stream_{Device{.kind = DeviceKind::cpu, .index = 0, .threads = GetParam()}};
  const Operations& ops_ = operations(DeviceKind::cpu);
};

}  // namespace hat::test
