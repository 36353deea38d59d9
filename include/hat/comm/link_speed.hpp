#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "hat/comm/communicator.hpp"

namespace hat {

/// What a link between two ranks does. Default: takes no time.
struct LinkSpeed {
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double latency_s = 0;
};

/// The slowest of the links between ranks of one node, and of those between nodes.
struct LinkSpeeds {
  LinkSpeed inside;
  LinkSpeed between;
};

/// Collective: measures the links from each rank to the next by messages there and back (Communicator::start_transfer,
/// so what is emulated is measured), a few ms for each; half of the links at a time, as in a ring. `node_of_rank`: of
/// this communicator. Returns what this rank saw. Throws Error naming the rank that says nothing for `timeout_s`.
LinkSpeeds measure_links(const Communicator& ranks, const std::vector<int>& node_of_rank, double timeout_s);
/// The slowest of both.
LinkSpeeds slower_of(const LinkSpeeds& a, const LinkSpeeds& b);

}  // namespace hat
