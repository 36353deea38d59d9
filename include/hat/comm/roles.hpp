#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hat/config/deck.hpp"

namespace hat {

enum class Role { server, worker, both };

/// Who does what. Decided once, the same on all ranks.
struct RolePlan {
  std::vector<Role> role_of_rank;   ///< by world rank
  std::vector<int> rank_of_server;  ///< world rank of server 0, 1, ...
  std::vector<int> rank_of_worker;
  int servers() const { return static_cast<int>(rank_of_server.size()); }
  int workers() const { return static_cast<int>(rank_of_worker.size()); }
};

/// `node_of_rank[r]`: number of the node of world rank r.
///   spread:    servers spread evenly over the nodes
///   packed:    the first ranks are the servers
///   dedicated: nodes that hold servers hold nothing else; nodes are taken from the front, and all ranks of a node
///              become servers, so `servers` must be the size of the first one or more nodes
/// One rank alone is both. Throws InputError when it cannot be had.
RolePlan plan_roles(const std::vector<int>& node_of_rank, int64_t servers, Placement placement);

/// "server 0", "worker 3", "server 0 and worker 0".
std::string role_name(const RolePlan& plan, int world_rank);

}  // namespace hat
