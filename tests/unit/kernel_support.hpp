#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
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

/// Whether long sizes can be tested.
enum class Speed { real, emulated };

/// Kernels that are tested, and how they are run. Their results are there when a call returns.
struct KernelTarget {
  std::string name;
  const Operations* operations;
  std::function<const Stream&()> stream;
  Speed speed = Speed::real;
};

/// Of the CPU, with one thread, two and three (cpu_target.cpp), or of CUDA in emulation, with threads in several orders
/// (cuda_emulation/cuda_target.cpp): the results must be right with all.
std::vector<KernelTarget> kernel_targets();

class Kernels : public testing::TestWithParam<KernelTarget> {
 protected:
  const Stream& stream_ = GetParam().stream();
  const Operations& ops_ = *GetParam().operations;
};

}  // namespace hat::test
