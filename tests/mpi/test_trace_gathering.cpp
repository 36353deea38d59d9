#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "hat/core/clock.hpp"
#include "hat/metrics/trace.hpp"
#include "mpi_test_main.hpp"

namespace hat {
namespace {

// Ranks on "other nodes" whose clocks are off by 100 s a rank. All clocks are of this machine, so what must come out is
// known.
TEST(ClockOffset, TellsClocksOfOtherNodesApart) {
  const Communicator world = Communicator::world();
  std::vector<int> node_of_rank(static_cast<size_t>(world.size()));
  std::iota(node_of_rank.begin(), node_of_rank.end(), 0);
  const int root = world.size() - 1;
  const double off = 100.0 * (world.rank() - root);
  const double offset = clock_offset_s(world, root, node_of_rank, /*timeout_s=*/60, [&] { return now_s() + off; });
  EXPECT_NEAR(offset, -off, 0.05) << "rank " << world.rank();
  if (world.rank() == root) {
    EXPECT_EQ(offset, 0);
  }
}

TEST(ClockOffset, IsNothingOnTheSameNode) {
  const Communicator world = Communicator::world();
  const std::vector<int> node_of_rank(static_cast<size_t>(world.size()), 4);
  EXPECT_EQ(clock_offset_s(world, 0, node_of_rank, /*timeout_s=*/60, [&] { return now_s() + 100.0 * world.rank(); }),
            0);
}

TEST(GatherTraces, EveryRecorderOfEveryRankOnTheRootsClock) {
  const Communicator world = Communicator::world();
  const int root = world.size() - 1;
  TraceRecorder server(TraceRecorder::Role::server, world.rank(), 10);
  TraceRecorder worker(TraceRecorder::Role::worker, world.rank(), 10);
  for (int i = 0; i < 1000 * world.rank(); ++i) {
    server.add({.kind = TraceKind::adding, .begin_s = 1.0 * i, .end_s = 1.0 * i + 0.5, .step = 3, .version = i});
  }
  std::vector<const TraceRecorder*> own{&server};
  if (world.rank() % 2 == 1) own.push_back(&worker);
  std::vector<RoleTrace> taken;
  gather_traces(world, root, own, /*offset_s=*/world.rank(), /*timeout_s=*/60,
                [&](const RoleTrace& trace) { taken.push_back(trace); });
  if (world.rank() != root) {
    EXPECT_TRUE(taken.empty());
    return;
  }
  EXPECT_EQ(static_cast<int>(taken.size()), world.size() + world.size() / 2);
  for (const RoleTrace& trace : taken) {
    if (trace.role == TraceRecorder::Role::worker) {
      EXPECT_TRUE(trace.events.empty());
      continue;
    }
    ASSERT_EQ(trace.events.size(), static_cast<size_t>(1000 * trace.number));
    for (size_t i = 0; i < trace.events.size(); ++i) {
      EXPECT_EQ(trace.events[i].begin_s, static_cast<double>(i) + trace.number);
      EXPECT_EQ(trace.events[i].version, static_cast<int64_t>(i));
    }
  }
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
