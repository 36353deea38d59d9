#include "hat/comm/link_speed.hpp"

#include <algorithm>

#include "hat/comm/backoff.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"

namespace hat {

namespace {

constexpr int kTag = 0x7ff0;  // nothing else is on its way meanwhile
constexpr int kTries = 5;
constexpr int64_t kMostBytes = int64_t{4} << 20;
constexpr double kLongEnough_s = 4e-3;

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

/// Seconds that `bytes` take to the other rank, a half of there and back; on both ranks about the same.
double one_way_seconds(const Peer& peer, std::vector<std::byte>& data, int64_t bytes) {
  const std::span<std::byte> part = std::span(data).first(static_cast<size_t>(bytes));
  const double begin = now_s();
  for (const bool sends : {peer.begins, !peer.begins}) {
    Request request =
        sends ? peer.ranks.start_transfer(part, peer.rank, kTag) : peer.ranks.start_receive(part, peer.rank, kTag);
    peer.wait(request);
  }
  return (now_s() - begin) / 2;
}

LinkSpeed measure(const Peer& peer) {
  std::vector<std::byte> data(static_cast<size_t>(kMostBytes));
  LinkSpeed link;
  const auto fastest = [&](int64_t bytes) {
    double seconds = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTries; ++i) seconds = std::min(seconds, one_way_seconds(peer, data, bytes));
    return seconds;
  };
  link.latency_s = fastest(sizeof(float));
  // Both go by what the first measured: they must agree on when to stop.
  for (int64_t bytes = int64_t{4} << 10;; bytes *= 4) {
    double seconds = one_way_seconds(peer, data, bytes);
    Request request = peer.begins
                          ? peer.ranks.start_send(std::as_bytes(std::span(&seconds, 1)), peer.rank, kTag)
                          : peer.ranks.start_receive(std::as_writable_bytes(std::span(&seconds, 1)), peer.rank, kTag);
    peer.wait(request);
    if (seconds < kLongEnough_s && bytes < kMostBytes) continue;
    link.bytes_per_s = static_cast<double>(bytes) / std::max(fastest(bytes) - link.latency_s, 1e-9);
    return link;
  }
}

}  // namespace

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
