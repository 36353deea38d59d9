#include <algorithm>

#include "hat/comm/roles.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using Nodes = std::vector<int>;

/// Every rank has one role, and the lists by role name exactly the ranks of that role, in rank order.
void expect_sound(const RolePlan& plan, size_t ranks, int servers) {
  ASSERT_EQ(plan.role_of_rank.size(), ranks);
  EXPECT_EQ(plan.servers(), servers);
  EXPECT_EQ(plan.workers(), static_cast<int>(ranks) - servers);
  EXPECT_TRUE(std::is_sorted(plan.rank_of_server.begin(), plan.rank_of_server.end()));
  EXPECT_TRUE(std::is_sorted(plan.rank_of_worker.begin(), plan.rank_of_worker.end()));
  for (const int rank : plan.rank_of_server) EXPECT_EQ(plan.role_of_rank[static_cast<size_t>(rank)], Role::server);
  for (const int rank : plan.rank_of_worker) EXPECT_EQ(plan.role_of_rank[static_cast<size_t>(rank)], Role::worker);
}

std::vector<int> servers_per_node(const RolePlan& plan, const Nodes& nodes) {
  std::vector<int> count(static_cast<size_t>(*std::max_element(nodes.begin(), nodes.end())) + 1, 0);
  for (const int rank : plan.rank_of_server) ++count[static_cast<size_t>(nodes[static_cast<size_t>(rank)])];
  return count;
}

TEST(Roles, OneRankIsBoth) {
  for (const Placement placement : {Placement::spread, Placement::packed, Placement::dedicated}) {
    const RolePlan plan = plan_roles({0}, 1, placement);
    EXPECT_EQ(plan.role_of_rank, std::vector<Role>{Role::both});
    EXPECT_EQ(plan.servers(), 1);
    EXPECT_EQ(plan.workers(), 1);
    EXPECT_EQ(role_name(plan, 0), "server 0 and worker 0");
  }
}

TEST(Roles, NamesCountByRole) {
  const RolePlan plan = plan_roles({0, 0, 1, 1}, 2, Placement::spread);
  EXPECT_EQ(plan.rank_of_server, (std::vector<int>{0, 2}));
  EXPECT_EQ(role_name(plan, 0), "server 0");
  EXPECT_EQ(role_name(plan, 1), "worker 0");
  EXPECT_EQ(role_name(plan, 2), "server 1");
  EXPECT_EQ(role_name(plan, 3), "worker 1");
}

TEST(Roles, PackedTakesTheFirstRanks) {
  const RolePlan plan = plan_roles({0, 0, 1, 1, 2, 2}, 3, Placement::packed);
  expect_sound(plan, 6, 3);
  EXPECT_EQ(plan.rank_of_server, (std::vector<int>{0, 1, 2}));
}

TEST(Roles, SpreadIsEvenOverNodes) {
  const std::vector<Nodes> machines{{0, 0, 0, 0}, {0, 0, 1, 1, 2, 2}, {0, 1, 2, 0, 1, 2, 0, 1, 2}, {0, 0, 0, 1, 1, 1}};
  for (const Nodes& nodes : machines) {
    for (int servers = 1; servers < static_cast<int>(nodes.size()); ++servers) {
      const RolePlan plan = plan_roles(nodes, servers, Placement::spread);
      expect_sound(plan, nodes.size(), servers);
      const std::vector<int> count = servers_per_node(plan, nodes);
      EXPECT_LE(*std::max_element(count.begin(), count.end()) - *std::min_element(count.begin(), count.end()), 1);
    }
  }
  // Few servers on many nodes lie far apart.
  const RolePlan two_of_four = plan_roles({0, 0, 1, 1, 2, 2, 3, 3}, 2, Placement::spread);
  EXPECT_EQ(two_of_four.rank_of_server, (std::vector<int>{0, 4}));
}

TEST(Roles, SpreadFillsUnequalNodes) {
  const Nodes nodes{0, 1, 1, 1, 1, 2};
  for (int servers = 1; servers < 6; ++servers) {
    expect_sound(plan_roles(nodes, servers, Placement::spread), nodes.size(), servers);
  }
}

TEST(Roles, DedicatedTakesWholeNodesFromTheFront) {
  const Nodes nodes{0, 1, 2, 0, 1, 2, 2};  // ranks dealt round the nodes; node 2 has three
  const RolePlan one = plan_roles(nodes, 2, Placement::dedicated);
  expect_sound(one, nodes.size(), 2);
  EXPECT_EQ(one.rank_of_server, (std::vector<int>{0, 3}));
  const RolePlan two = plan_roles(nodes, 4, Placement::dedicated);
  expect_sound(two, nodes.size(), 4);
  EXPECT_EQ(two.rank_of_server, (std::vector<int>{0, 1, 3, 4}));
}

TEST(Roles, WhatCannotBeHadIsRefused) {
  using test::expect_input_error;
  expect_input_error([] { plan_roles({0}, 2, Placement::spread); }, {"servers: ", "2 servers on 1 rank"});
  expect_input_error([] { plan_roles({0, 0}, 2, Placement::spread); }, {"servers: ", "leave no worker", "3 ranks"});
  expect_input_error([] { plan_roles({0, 0, 1}, 7, Placement::packed); }, {"servers: ", "leave no worker"});
  for (const int servers : {1, 3}) {
    expect_input_error(
        [=] {
          plan_roles({0, 0, 1, 1, 2, 2}, servers, Placement::dedicated);
        },
        {"servers.placement: ", "dedicated needs whole nodes"});
  }
}

}  // namespace
}  // namespace hat
