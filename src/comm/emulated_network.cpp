#include "hat/comm/emulated_network.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "hat/comm/shared_memory.hpp"
#include "hat/core/random.hpp"

namespace hat {

namespace {

/// On the clock of now_s(), which all processes of a host share.
int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Takes the link for `duration_ns` from `earliest_ns` on, or from when it is free. Returns when that begins.
int64_t occupy(std::atomic<int64_t>& free_ns, int64_t earliest_ns, int64_t duration_ns) {
  int64_t free = free_ns.load();
  int64_t begin_ns = 0;
  do {
    begin_ns = std::max(free, earliest_ns);
  } while (!free_ns.compare_exchange_weak(free, begin_ns + duration_ns));
  return begin_ns;
}

}  // namespace

bool EmulatedLinks::Transfer::is_through(int64_t now_ns) {
  if (in_ != nullptr && now_ns >= out_begin_ns_) {
    const int64_t in_end_ns = occupy(*in_, out_begin_ns_, in_duration_ns_) + in_duration_ns_;
    through_ns_ = std::max(through_ns_, in_end_ns + latency_ns_);
    in_ = nullptr;
  }
  return in_ == nullptr && now_ns >= through_ns_;
}

EmulatedLinks::EmulatedLinks(std::span<Link> links, const EmulatedNetworkConfig& config,
                             const std::vector<int>& rank_of_server, double bytes_per_byte, uint64_t seed,
                             uint64_t stream)
    : links_(links),
      config_(config),
      bandwidths_(links.size(), config.bandwidth),
      bytes_per_byte_(bytes_per_byte),
      seed_(seed),
      stream_(stream) {
  if (config.server_bandwidth == 0) return;
  for (const int rank : rank_of_server) bandwidths_[static_cast<size_t>(rank)] = config.server_bandwidth;
}

int64_t EmulatedLinks::duration_ns(int rank, double charged_bytes) const {
  constexpr double kLongest_ns = 1e15;  // eleven days: sums of such stay countable
  return static_cast<int64_t>(std::min(1e9 * charged_bytes / bandwidths_[static_cast<size_t>(rank)], kLongest_ns));
}

double EmulatedLinks::draw_jitter() { return random_log_normal(config_.jitter, seed_, stream_, transfers_++); }

EmulatedLinks::Transfer EmulatedLinks::start(int from, int to, int64_t bytes, int64_t now_ns) {
  Transfer transfer;
  if (from / config_.ranks_per_node == to / config_.ranks_per_node) return transfer;
  const double charged = static_cast<double>(bytes) * bytes_per_byte_ * draw_jitter();
  const int64_t out_duration_ns = duration_ns(from, charged);
  transfer.latency_ns_ = static_cast<int64_t>(1e9 * config_.latency_s);
  transfer.out_begin_ns_ = occupy(links_[static_cast<size_t>(from)].out_ns, now_ns, out_duration_ns);
  transfer.through_ns_ = transfer.out_begin_ns_ + out_duration_ns + transfer.latency_ns_;
  transfer.in_duration_ns_ = duration_ns(to, charged);
  transfer.in_ = &links_[static_cast<size_t>(to)].in_ns;
  transfer.is_through(now_ns);  // its place at the receiver is taken now if it need not queue here
  return transfer;
}

namespace {

/// Collective. A free link of each rank.
std::span<EmulatedLinks::Link> make_links(const SharedMemory& memory, const Communicator& all) {
  const std::span links(reinterpret_cast<EmulatedLinks::Link*>(memory.data()), static_cast<size_t>(all.size()));
  if (all.rank() == 0) std::uninitialized_default_construct(links.begin(), links.end());
  all.barrier();
  return links;
}

}  // namespace

struct EmulatedNetwork::Impl {
  Impl(const EmulatedNetworkConfig& config, const Communicator& all, const std::vector<int>& rank_of_server,
       double bytes_per_byte, uint64_t seed)
      : memory(all, static_cast<int64_t>(sizeof(EmulatedLinks::Link)) * all.size()),
        rank(all.rank()),
        links(make_links(memory, all), config, rank_of_server, bytes_per_byte, seed, static_cast<uint64_t>(rank)) {}

  SharedMemory memory;
  int rank;
  EmulatedLinks links;
};

EmulatedNetwork::EmulatedNetwork(const EmulatedNetworkConfig& config, const Communicator& all,
                                 const std::vector<int>& rank_of_server, double bytes_per_byte, uint64_t seed)
    : impl_(std::make_unique<Impl>(config, all, rank_of_server, bytes_per_byte, seed)) {}

EmulatedNetwork::~EmulatedNetwork() = default;

int EmulatedNetwork::world_rank() const { return impl_->rank; }

EmulatedNetwork::Transfer EmulatedNetwork::start(int from, int to, int64_t bytes) {
  return impl_->links.start(from, to, bytes, now_ns());
}

bool EmulatedNetwork::is_through(Transfer& transfer) { return transfer.is_through(now_ns()); }

}  // namespace hat
