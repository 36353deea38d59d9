#include "hat/comm/link_speed.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "hat/comm/backoff.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"

namespace hat {

namespace {

constexpr int kTag = 0x7ff0;  // nothing else is on its way meanwhile
constexpr int kFewestTries = 6;
constexpr int kMostTries = 20;
constexpr double kAlike = 1.1;       // the fastest two tries: what disturbs is not in them
constexpr double kEnough_s = 0.5;    // of tries of one size: fewer will do then, but not a single one
constexpr double kAboveLatency = 8;  // a message takes this many times the latency before it tells of bandwidth
constexpr int64_t kFewestBytes = int64_t{4} << 10;
constexpr int64_t kMostBytes = int64_t{4} << 20;
constexpr double kLongEnough_s = 10e-3;  // longer than a busy node's processes wait for their turn, most often

/// The other end of a link.
struct Peer {
  const Communicator& ranks;
  int rank;
  bool begins;  // this rank sends first
  double timeout_s;

  void wait(Request& request) const {
    Backoff backoff;
    const double begin = now_s();
    while (!request.test()) {
      if (now_s() - begin > timeout_s) {
        throw Error(fmt::format("worker {} waited {} s (timeout_s) for worker {} while links were measured",
                                ranks.rank(), timeout_s, rank));
      }
      backoff.pause();
    }
  }
};

/// There and back.
void exchange(const Peer& peer, std::span<std::byte> data) {
  for (const bool sends : {peer.begins, !peer.begins}) {
    Request request =
        sends ? peer.ranks.start_transfer(data, peer.rank, kTag) : peer.ranks.start_receive(data, peer.rank, kTag);
    peer.wait(request);
  }
}

/// From the one that begins to the other, beside what is measured. `value` lies in memory that outlives a failure.
template <class Value>
void tell(const Peer& peer, Value& value) {
  Request request = peer.begins
                        ? peer.ranks.start_send(std::as_bytes(std::span(&value, 1)), peer.rank, kTag)
                        : peer.ranks.start_receive(std::as_writable_bytes(std::span(&value, 1)), peer.rank, kTag);
  peer.wait(request);
}

/// What messages are sent from and received in.
struct Buffers {
  std::vector<std::byte> data = std::vector<std::byte>(static_cast<size_t>(kMostBytes));
  int64_t bytes = 0;  // none: the other one may go
  LinkSpeed link = {};
};

void measure(const Peer& peer, Buffers& buffers) {
  const auto exchange_bytes = [&] {
    exchange(peer, std::span(buffers.data).first(static_cast<size_t>(buffers.bytes)));
  };
  if (peer.begins) {
    buffers.link = link_from_tries([&](int64_t size) {
      buffers.bytes = size;
      tell(peer, buffers.bytes);
      const double begin = now_s();
      exchange_bytes();
      return (now_s() - begin) / 2;
    });
    buffers.bytes = 0;
    tell(peer, buffers.bytes);
  } else {
    for (tell(peer, buffers.bytes); buffers.bytes > 0; tell(peer, buffers.bytes)) exchange_bytes();
  }
  tell(peer, buffers.link);
}

/// Both get what the one that begins has seen: it decides how long messages are, and when it has seen enough.
LinkSpeed measure(const Peer& peer) {
  auto buffers = std::make_unique<Buffers>();
  try {
    measure(peer, *buffers);
  } catch (...) {
    (void)buffers.release();  // survivors of a lost rank go on, and what is late may still arrive there
    throw;
  }
  return buffers->link;
}

}  // namespace

LinkSpeed link_from_tries(const std::function<double(int64_t bytes)>& one_way_s) {
  const auto fastest = [&](int64_t bytes) {
    double first = std::numeric_limits<double>::infinity();
    double second = first;
    double spent = 0;
    for (int i = 0; i < kMostTries && (i < kFewestTries || second > kAlike * first); ++i) {
      const double seconds = one_way_s(bytes);
      second = std::min(second, seconds);
      if (second < first) std::swap(first, second);
      spent += seconds;
      if (spent > kEnough_s && i > 0) break;
    }
    return first;
  };
  LinkSpeed link{.latency_s = fastest(sizeof(float))};
  for (int64_t bytes = kFewestBytes;; bytes *= 4) {
    const double seconds = fastest(bytes);
    if (seconds < std::max(kLongEnough_s, kAboveLatency * link.latency_s) && bytes < kMostBytes) continue;
    // A latency of more than half of it says that small messages were disturbed, or that the link is faster than can be
    // told from the largest: this is what it does at least.
    link.bytes_per_s = static_cast<double>(bytes) / std::max(seconds - link.latency_s, seconds / 2);
    return link;
  }
}

LinkSpeeds measure_links(const Communicator& ranks, const std::vector<int>& node_of_rank, double timeout_s) {
  LinkSpeeds speeds;
  for (const int phase : {0, 1}) {  // pairs that begin with an even rank, then those with an odd one
    const bool begins = ranks.rank() % 2 == phase;
    const int other = begins ? ranks.rank() + 1 : ranks.rank() - 1;
    if (other >= 0 && other < ranks.size()) {
      const bool one_node = node_of_rank[static_cast<size_t>(ranks.rank())] == node_of_rank[static_cast<size_t>(other)];
      LinkSpeeds seen;
      (one_node ? seen.inside : seen.between) =
          measure({.ranks = ranks, .rank = other, .begins = begins, .timeout_s = timeout_s});
      speeds = slower_of(speeds, seen);
    }
    ranks.wait_barrier(timeout_s, "the other workers to measure their links");
  }
  return speeds;
}

LinkSpeeds slower_of(const LinkSpeeds& a, const LinkSpeeds& b) {
  const auto slower = [](const LinkSpeed& x, const LinkSpeed& y) {
    return LinkSpeed{.bytes_per_s = std::min(x.bytes_per_s, y.bytes_per_s),
                     .latency_s = std::max(x.latency_s, y.latency_s)};
  };
  return {.inside = slower(a.inside, b.inside), .between = slower(a.between, b.between)};
}

}  // namespace hat
