#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/config/emulation.hpp"

namespace hat {

/// The arithmetic of an emulated network: every rank has a link out and a link in, and a switch that is never full is
/// between them. Transfers on a link queue in the order in which they ask for it. A transfer takes the sender's link
/// for its bytes at that link's bandwidth; from the moment that begins it may take the receiver's, at that one's; it is
/// through when both have passed it on, and the latency later. Times in ns of one clock, the same for all processes.
/// Thread and process safe: a link is one atomic word for each direction, in memory that all ranks share.
class EmulatedLinks {
 public:
  /// When the link is free.
  struct alignas(64) Link {
    std::atomic<int64_t> out_ns{0};
    std::atomic<int64_t> in_ns{0};
  };
  static_assert(std::atomic<int64_t>::is_always_lock_free, "the words are shared between processes");

  /// A transfer that has taken its place at the sender's link. Default-made: through at once.
  class Transfer {
   public:
    /// Takes its place at the receiver's link as soon as it is its turn at the sender's; true once it is through.
    bool is_through(int64_t now_ns);

   private:
    friend class EmulatedLinks;
    std::atomic<int64_t>* in_ = nullptr;  // until its place there is taken
    int64_t out_begin_ns_ = 0;
    int64_t in_duration_ns_ = 0;
    int64_t latency_ns_ = 0;
    int64_t through_ns_ = 0;
  };

  /// `links`, by rank, outlive this. `rank_of_server`: ranks whose links have the servers' bandwidth. A real byte is
  /// charged as `bytes_per_byte`. `stream`: of this process's random numbers (jitter), with `seed`.
  EmulatedLinks(std::span<Link> links, const EmulatedNetworkConfig& config, const std::vector<int>& rank_of_server,
                double bytes_per_byte, uint64_t seed, uint64_t stream);

  /// `bytes`: real ones. Between ranks of one emulated node nothing is charged.
  Transfer start(int from, int to, int64_t bytes, int64_t now_ns);

 private:
  int64_t duration_ns(int rank, double charged_bytes) const;
  double draw_jitter();

  std::span<Link> links_;
  EmulatedNetworkConfig config_;
  std::vector<double> bandwidths_;  // by rank
  double bytes_per_byte_;
  uint64_t seed_;
  uint64_t stream_;
  uint64_t transfers_ = 0;
};

/// Links in memory that all ranks share. What is charged: bodies of pulls and pushes and the messages of rings and
/// gangs (Window::start_transfer, Communicator::start_transfer). Control messages and the headers of pulls are not.
class EmulatedNetwork {
 public:
  using Transfer = EmulatedLinks::Transfer;

  /// Collective. `all`: those that train, the first ranks of MPI_COMM_WORLD, on one node; `rank_of_server` counts them.
  EmulatedNetwork(const EmulatedNetworkConfig& config, const Communicator& all, const std::vector<int>& rank_of_server,
                  double bytes_per_byte, uint64_t seed);
  ~EmulatedNetwork();
  EmulatedNetwork(const EmulatedNetwork&) = delete;
  EmulatedNetwork& operator=(const EmulatedNetwork&) = delete;

  int world_rank() const;
  /// Between ranks of MPI_COMM_WORLD, from now on.
  Transfer start(int from, int to, int64_t bytes);
  static bool is_through(Transfer& transfer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
