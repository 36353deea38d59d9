#include <gtest/gtest.h>

#include "hat/metrics/energy_counter.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

namespace fs = std::filesystem;

void write_domain(const fs::path& folder, const std::string& name, int64_t energy_uj, int64_t range_uj) {
  test::write_bytes(folder / "name", name + "\n");
  test::write_bytes(folder / "energy_uj", std::to_string(energy_uj) + "\n");
  test::write_bytes(folder / "max_energy_range_uj", std::to_string(range_uj) + "\n");
}

TEST(EnergyCounter, AddsPackagesAndTheirMemoryOnce) {
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "intel-rapl");
  write_domain(folder / "intel-rapl:0", "package-0", 1'000'000, 10'000'000);
  write_domain(folder / "intel-rapl:0:0", "core", 0, 10'000'000);
  write_domain(folder / "intel-rapl:0:1", "dram", 5'000'000, 10'000'000);
  write_domain(folder / "intel-rapl:1", "package-1", 9'000'000, 10'000'000);
  write_domain(folder / "intel-rapl:2", "psys", 0, 10'000'000);
  write_domain(folder / "intel-rapl-mmio:0", "package-0", 0, 10'000'000);
  EnergyCounter counter(folder.path());
  write_domain(folder / "intel-rapl:0", "package-0", 3'000'000, 10'000'000);  // 2 J
  write_domain(folder / "intel-rapl:0:0", "core", 1'500'000, 10'000'000);     // within the package
  write_domain(folder / "intel-rapl:0:1", "dram", 5'500'000, 10'000'000);     // 0.5 J
  write_domain(folder / "intel-rapl:1", "package-1", 1'000'000, 10'000'000);  // ran over: 2 J
  write_domain(folder / "intel-rapl:2", "psys", 9'000'000, 10'000'000);       // holds the packages
  write_domain(folder / "intel-rapl-mmio:0", "package-0", 2'000'000, 10'000'000);
  counter.update();
  ASSERT_TRUE(counter.joules().has_value());
  EXPECT_DOUBLE_EQ(*counter.joules(), 4.5);
  write_domain(folder / "intel-rapl:0", "package-0", 3'250'000, 10'000'000);
  counter.update();
  EXPECT_DOUBLE_EQ(*counter.joules(), 4.75);
}

TEST(EnergyCounter, WithoutCountersThereIsNoFigure) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(EnergyCounter(folder.path()).joules().has_value());
  EXPECT_FALSE(EnergyCounter(folder / "missing").joules().has_value());
}

}  // namespace
}  // namespace hat
