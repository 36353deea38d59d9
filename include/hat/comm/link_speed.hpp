#pragma once
#include <cstdint>
#include <functional>
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

/// What a link does, by tries: `one_way_s` gives the seconds that a message of so many bytes took. Other programs may
/// hold up any try, so it goes by the fastest of several, and by messages that take longer than most such gaps.
LinkSpeed link_from_tries(const std::function<double(int64_t bytes)>& one_way_s);
/// Collective: measures the links from each rank to the next by messages there and back (Communicator::start_transfer,
/// so what is emulated is measured), 10 ms and more for each; half of the links at a time, as in a ring.
/// `node_of_rank`: of this communicator. Returns what this rank saw. Throws Error naming the rank that says nothing for
/// `timeout_s`.
LinkSpeeds measure_links(const Communicator& ranks, const std::vector<int>& node_of_rank, double timeout_s);
/// The slowest of both.
LinkSpeeds slower_of(const LinkSpeeds& a, const LinkSpeeds& b);

}  // namespace hat
