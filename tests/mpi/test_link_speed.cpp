#include <cmath>

#include "hat/comm/emulated_network.hpp"
#include "hat/comm/link_speed.hpp"
#include "mpi_test_main.hpp"

namespace hat {
namespace {

TEST(LinkSpeed, TellsLinksInsideANodeFromThoseBetween) {
  const Communicator world = Communicator::world();
  std::vector<int> nodes(static_cast<size_t>(world.size()));
  for (size_t rank = 0; rank < nodes.size(); ++rank) nodes[rank] = static_cast<int>(rank) / 2;
  const LinkSpeeds speeds = measure_links(world, nodes, /*timeout_s=*/20);
  const int rank = world.rank();
  const bool inside = rank % 2 == 1 || rank + 1 < world.size();
  const bool between = rank % 2 == 0 ? rank > 0 : rank + 1 < world.size();
  EXPECT_EQ(std::isfinite(speeds.inside.bytes_per_s), inside) << rank;
  EXPECT_EQ(std::isfinite(speeds.between.bytes_per_s), between) << rank;
  for (const LinkSpeed& link : {speeds.inside, speeds.between}) {
    EXPECT_GT(link.bytes_per_s, 1e6);
    EXPECT_LT(link.latency_s, 1);
  }
}

TEST(LinkSpeed, TheSlowerOfTwo) {
  const LinkSpeeds a{.inside = {.bytes_per_s = 10, .latency_s = 1}, .between = {}};
  const LinkSpeeds b{.inside = {.bytes_per_s = 20, .latency_s = 2}, .between = {.bytes_per_s = 5, .latency_s = 3}};
  const LinkSpeeds slower = slower_of(a, b);
  EXPECT_EQ(slower.inside.bytes_per_s, 10);
  EXPECT_EQ(slower.inside.latency_s, 2);
  EXPECT_EQ(slower.between.bytes_per_s, 5);
  EXPECT_EQ(slower.between.latency_s, 3);
}

// What is emulated is measured.
TEST(LinkSpeed, OfAnEmulatedNetwork) {
  const Communicator world = Communicator::world();
  EmulatedNetworkConfig config;
  config.bandwidth = 2e6;
  config.latency_s = 2e-3;
  EmulatedNetwork network(config, world, {}, 1.0, 1);
  const Communicator ranks = world.split(0);
  ranks.charge_transfers_to(network);
  const LinkSpeeds speeds = measure_links(ranks, std::vector<int>(static_cast<size_t>(world.size()), 0), 20);
  // (A busy machine makes links slower. The other end may have sent a moment before this one looked at the clock.)
  EXPECT_LT(speeds.inside.bytes_per_s, 4e6);
  EXPECT_GT(speeds.inside.bytes_per_s, 2e5);
  EXPECT_GE(speeds.inside.latency_s, 1e-3);
  EXPECT_LT(speeds.inside.latency_s, 50e-3);
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
