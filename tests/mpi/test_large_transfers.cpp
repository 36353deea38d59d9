#include <sys/statvfs.h>

#include <fstream>
#include <thread>

#include "hat/comm/versioned_slots.hpp"
#include "mpi_test_main.hpp"

// Rank 0 serves, rank 1 takes. Offsets and sizes beyond 2^31 bytes.

namespace hat {
namespace {

constexpr int64_t kGigabyte = 1'000'000'000;

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string unit;
  while (file >> key >> kilobytes >> unit) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

int64_t available_shared_memory_bytes() {
  struct statvfs info {};
  return statvfs("/dev/shm", &info) == 0 ? static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize)
                                         : 0;
}

/// Rank 0's view decides for all.
std::string reason_to_skip(const Communicator& world, int64_t memory_bytes, int64_t shared_bytes) {
  std::string reason;
  if (available_memory_bytes() < memory_bytes) {
    reason = "needs " + std::to_string(memory_bytes / kGigabyte) + " GB of free memory";
  } else if (available_shared_memory_bytes() < shared_bytes) {
    reason = "needs " + std::to_string(shared_bytes / kGigabyte) + " GB in /dev/shm";
  }
  return world.broadcast(reason, 0);
}

float value_of(int64_t i) { return static_cast<float>(i % 16'777'213); }

TEST(LargeTransfers, OnePartAboveTwoGigabytes) {
  const Communicator world = Communicator::world();
  constexpr int64_t kCount = 540'000'011;  // 2.16e9 bytes
  constexpr int64_t kBehind = 1000;        // a second part, which begins beyond 2^31
  static_assert(kCount * 4 > int64_t{1} << 31);
  const std::string reason = reason_to_skip(world, 6 * kGigabyte, 3 * kGigabyte);
  if (!reason.empty()) GTEST_SKIP() << reason;
  const PartSlots large{.server_rank = 0, .offset = 0, .count = kCount, .slots = 1};
  const PartSlots behind{.server_rank = 0, .offset = large.size_bytes(), .count = kBehind, .slots = 2};
  const Window window(world, world.rank() == 0 ? large.size_bytes() + behind.size_bytes() : 0);
  if (world.rank() == 0) {
    SlotPublisher first(window, large);
    SlotPublisher second(window, behind);
    const std::span<float> values = first.begin(0);
    for (int64_t i = 0; i < kCount; ++i) values[static_cast<size_t>(i)] = value_of(i);
    first.publish(0);
    for (float& value : second.begin(0)) value = 42.0F;
    second.publish(0);
    world.barrier();
  } else {
    world.barrier();
    std::vector<float> first(kCount);
    std::vector<float> second(kBehind);
    PullCounters counters;
    SlotPull pull(window, {{.part = large, .values = first.data()}, {.part = behind, .values = second.data()}}, 0,
                  SlotPull::Rule::exact, /*have=*/-1, counters);
    while (!pull.step()) std::this_thread::yield();
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i) wrong += first[static_cast<size_t>(i)] == value_of(i) ? 0 : 1;
    EXPECT_EQ(wrong, 0) << "of " << kCount << " values";
    EXPECT_EQ(second, std::vector<float>(kBehind, 42.0F));
    EXPECT_EQ(counters.bytes, (kCount + kBehind) * 4);
  }
  world.barrier();
}

// One message of more than two of the pieces that it travels in, then a small one behind it on the same tag.
TEST(LargeTransfers, OneMessageAboveTwoGigabytes) {
  const Communicator world = Communicator::world();
  constexpr int64_t kCount = 540'000'011;
  const std::string reason = reason_to_skip(world, 6 * kGigabyte, 0);
  if (!reason.empty()) GTEST_SKIP() << reason;
  std::vector<float> values(kCount, -1.0F);
  float behind = -1.0F;
  if (world.rank() == 0) {
    for (int64_t i = 0; i < kCount; ++i) values[static_cast<size_t>(i)] = value_of(i);
    behind = 7.0F;
    Request large = world.start_send(std::as_bytes(std::span(values)), 1, 4);
    Request small = world.start_send(std::as_bytes(std::span(&behind, 1)), 1, 4);
    large.wait();
    small.wait();
  } else {
    Request large = world.start_receive(std::as_writable_bytes(std::span(values)), 0, 4);
    Request small = world.start_receive(std::as_writable_bytes(std::span(&behind, 1)), 0, 4);
    large.wait();
    small.wait();
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i) wrong += values[static_cast<size_t>(i)] == value_of(i) ? 0 : 1;
    EXPECT_EQ(wrong, 0) << "of " << kCount << " values";
    EXPECT_EQ(behind, 7.0F);
  }
  world.barrier();
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
