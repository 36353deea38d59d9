#include "hat/comm/roles.hpp"

#include <algorithm>

#include "hat/core/error.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {

int count_of(const std::vector<int>& node_of_rank, int node) {
  return static_cast<int>(std::count(node_of_rank.begin(), node_of_rank.end(), node));
}

std::vector<int> ranks_of_node(const std::vector<int>& node_of_rank, int node) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    if (node_of_rank[rank] == node) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// Server k goes to the next free rank of node k * nodes / servers (each node in turn when there are more servers).
std::vector<int> spread_servers(const std::vector<int>& node_of_rank, int64_t servers) {
  const int nodes = *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
  std::vector<int> taken(static_cast<size_t>(nodes), 0);
  std::vector<int> result;
  for (int64_t k = 0; k < servers; ++k) {
    int node = static_cast<int>(servers <= nodes ? k * nodes / servers : k % nodes);
    while (taken[static_cast<size_t>(node)] >= count_of(node_of_rank, node)) node = (node + 1) % nodes;
    const std::vector<int> ranks = ranks_of_node(node_of_rank, node);
    result.push_back(ranks[static_cast<size_t>(taken[static_cast<size_t>(node)]++)]);
  }
  return result;
}

std::vector<int> dedicated_servers(const std::vector<int>& node_of_rank, int64_t servers) {
  std::vector<int> result;
  for (int node = 0; static_cast<int64_t>(result.size()) < servers; ++node) {
    const std::vector<int> ranks = ranks_of_node(node_of_rank, node);
    result.insert(result.end(), ranks.begin(), ranks.end());
  }
  if (static_cast<int64_t>(result.size()) != servers) {
    throw KeyError("servers.placement",
                   fmt::format("dedicated needs whole nodes: of {} the first nodes are not filled exactly ({} there); "
                               "start other numbers of ranks per node or use spread",
                               counted(servers, "server"), counted(static_cast<int64_t>(result.size()), "rank")),
                   {"servers"});
  }
  return result;
}

}  // namespace

RolePlan plan_roles(const std::vector<int>& node_of_rank, int64_t servers, Placement placement) {
  const auto ranks = static_cast<int64_t>(node_of_rank.size());
  RolePlan plan;
  if (ranks == 1) {
    if (servers != 1) {
      throw KeyError("servers", fmt::format("{} servers on 1 rank: start more ranks (mpirun -n)", servers));
    }
    plan.role_of_rank = {Role::both};
    plan.rank_of_server = {0};
    plan.rank_of_worker = {0};
    return plan;
  }
  if (servers >= ranks) {
    throw KeyError("servers", fmt::format("{} of {} ranks leave no worker: start at least {} ranks (mpirun -n)",
                                          counted(servers, "server"), ranks, servers + 1));
  }
  switch (placement) {
    case Placement::packed:
      for (int rank = 0; rank < servers; ++rank) plan.rank_of_server.push_back(rank);
      break;
    case Placement::spread:
      plan.rank_of_server = spread_servers(node_of_rank, servers);
      break;
    case Placement::dedicated:
      plan.rank_of_server = dedicated_servers(node_of_rank, servers);
      break;
  }
  std::sort(plan.rank_of_server.begin(), plan.rank_of_server.end());
  plan.role_of_rank.assign(static_cast<size_t>(ranks), Role::worker);
  for (const int rank : plan.rank_of_server) plan.role_of_rank[static_cast<size_t>(rank)] = Role::server;
  for (int rank = 0; rank < ranks; ++rank) {
    if (plan.role_of_rank[static_cast<size_t>(rank)] == Role::worker) plan.rank_of_worker.push_back(rank);
  }
  return plan;
}

std::string role_name(const RolePlan& plan, int world_rank) {
  const auto number = [world_rank](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), world_rank) - ranks.begin();
  };
  switch (plan.role_of_rank[static_cast<size_t>(world_rank)]) {
    case Role::server:
      return fmt::format("server {}", number(plan.rank_of_server));
    case Role::worker:
      return fmt::format("worker {}", number(plan.rank_of_worker));
    case Role::both:
      break;
  }
  return "server 0 and worker 0";
}

}  // namespace hat
