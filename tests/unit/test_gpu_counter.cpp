#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "hat/device/gpu_counter.hpp"
#include "io_support.hpp"

// Against a library of NVML's interface (tests/tools/fake_nvml.cpp).
namespace hat {
namespace {

constexpr char kId[] = "0123456789abcdef0123456789abcdef";

struct GpuCounters : testing::Test {
  test::TemporaryFolder folder;
  std::filesystem::path file = folder.path() / "counters";
  void SetUp() override { setenv("FAKE_NVML", file.c_str(), 1); }
  void show(const std::string& counters) const { test::write_bytes(file, counters + "\n"); }
};

TEST_F(GpuCounters, AddEnergyAndAverageUtilization) {
  show("5000 10");
  GpuCounter counter(kId, HAT_FAKE_NVML);
  ASSERT_TRUE(counter.joules().has_value());
  EXPECT_EQ(*counter.joules(), 0);
  EXPECT_FALSE(counter.utilization().has_value()) << "not looked yet";
  show("7500 50");
  counter.update();
  EXPECT_DOUBLE_EQ(*counter.joules(), 2.5);
  EXPECT_DOUBLE_EQ(*counter.utilization(), 0.5);
  show("100 100");  // the driver was loaded again
  counter.update();
  show("600 90");
  counter.update();
  EXPECT_DOUBLE_EQ(*counter.joules(), 3.0);
  EXPECT_DOUBLE_EQ(*counter.utilization(), 0.8);
}

TEST_F(GpuCounters, WhatCannotBeReadHasNoFigure) {
  GpuCounter unsupported(kId, HAT_FAKE_NVML);  // no file: all calls fail
  unsupported.update();
  EXPECT_FALSE(unsupported.joules().has_value());
  EXPECT_FALSE(unsupported.utilization().has_value());
  show("5000 10");
  for (GpuCounter& counter : std::array{GpuCounter("ffff", HAT_FAKE_NVML), GpuCounter(kId, "libno-such-library.so")}) {
    counter.update();
    EXPECT_FALSE(counter.joules().has_value());
    EXPECT_FALSE(counter.utilization().has_value());
  }
}

}  // namespace
}  // namespace hat
