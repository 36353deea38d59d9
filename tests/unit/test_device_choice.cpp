#include <gtest/gtest.h>

#include "commands/device_choice.hpp"

namespace hat {
namespace {

std::vector<int> indices(const std::vector<AssignedDevice>& assigned) {
  std::vector<int> result;
  for (const AssignedDevice& device : assigned) result.push_back(device.index);
  return result;
}
std::vector<int> sharers(const std::vector<AssignedDevice>& assigned) {
  std::vector<int> result;
  for (const AssignedDevice& device : assigned) result.push_back(device.sharers);
  return result;
}
using Ints = std::vector<int>;
/// Workers that read the counters of their device.
Ints counting(const std::vector<AssignedDevice>& assigned) {
  Ints result;
  for (size_t w = 0; w < assigned.size(); ++w) {
    if (assigned[w].is_first) result.push_back(static_cast<int>(w));
  }
  return result;
}

TEST(DeviceChoice, CountsTheWorkersOfEachNodeWhereAllSeeAll) {
  const auto assigned = assign_devices({{.node = 0, .ids = {"a", "b"}},
                                        {.node = 1, .ids = {"c", "d"}},
                                        {.node = 0, .ids = {"a", "b"}},
                                        {.node = 1, .ids = {"c", "d"}}});
  EXPECT_EQ(indices(assigned), (Ints{0, 0, 1, 1}));
  EXPECT_EQ(sharers(assigned), (Ints{1, 1, 1, 1}));
}

TEST(DeviceChoice, TakesWhatALauncherShowsEachRank) {
  const auto assigned = assign_devices({{.ids = {"a"}}, {.ids = {"b"}}, {.ids = {"c"}}});
  EXPECT_EQ(indices(assigned), (Ints{0, 0, 0}));
  EXPECT_EQ(sharers(assigned), (Ints{1, 1, 1}));
}

TEST(DeviceChoice, EqualNamesOnTwoNodesAreTwoDevices) {
  const auto assigned = assign_devices({{.node = 0, .ids = {"a"}}, {.node = 1, .ids = {"a"}}});
  EXPECT_EQ(sharers(assigned), (Ints{1, 1}));
  EXPECT_EQ(counting(assigned), (Ints{0, 1}));
}

TEST(DeviceChoice, SharesAsEvenlyAsItCan) {
  const std::vector<DevicesOfWorker> workers(5, {.ids = {"a", "b"}});
  const auto assigned = assign_devices(workers);
  EXPECT_EQ(indices(assigned), (Ints{0, 1, 0, 1, 0}));
  EXPECT_EQ(sharers(assigned), (Ints{3, 2, 3, 2, 3}));
  EXPECT_EQ(counting(assigned), (Ints{0, 1}));
}

TEST(DeviceChoice, ListsInAnotherOrderNameTheSameDevices) {
  const auto assigned = assign_devices({{.ids = {"a", "b"}}, {.ids = {"b", "a"}}});
  EXPECT_EQ(indices(assigned), (Ints{0, 0}));
  EXPECT_EQ(sharers(assigned), (Ints{1, 1}));
}

}  // namespace
}  // namespace hat
