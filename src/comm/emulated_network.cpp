#include "hat/comm/emulated_network.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <new>
#include <optional>

#include "check.hpp"
#include "hat/core/error.hpp"
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
  return static_cast<int64_t>(1e9 * charged_bytes / bandwidths_[static_cast<size_t>(rank)]);
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

struct EmulatedNetwork::Impl {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Win window = MPI_WIN_NULL;
  int rank = 0;
  std::optional<EmulatedLinks> links;
};

namespace {
MPI_Comm first_ranks(int ranks) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group first = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  int range[1][3] = {{0, ranks - 1, 1}};
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_range_incl(world, 1, range, &first), "MPI_Group_range_incl");
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, first, 0, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&first);
  MPI_Group_free(&world);
  return comm;
}
}  // namespace

EmulatedNetwork::EmulatedNetwork(const EmulatedNetworkConfig& config, int ranks, const std::vector<int>& rank_of_server,
                                 double bytes_per_byte, uint64_t seed)
    : impl_(std::make_unique<Impl>()) {
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &impl_->rank), "MPI_Comm_rank");
  MPI_Comm all = first_ranks(ranks);
  check_mpi(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, impl_->rank, MPI_INFO_NULL, &impl_->node),
            "MPI_Comm_split_type");
  MPI_Comm_free(&all);
  check_mpi(MPI_Comm_set_errhandler(impl_->node, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_size(impl_->node, &size), "MPI_Comm_size");
  if (size != ranks) {
    throw Error(fmt::format("an emulated network needs memory shared by all {} ranks; this one shares it with {}",
                            ranks, size));
  }
  // All links lie in the part of rank 0, which makes them.
  const auto bytes = static_cast<MPI_Aint>(sizeof(EmulatedLinks::Link)) * ranks;
  void* base = nullptr;
  check_mpi(MPI_Win_allocate_shared(impl_->rank == 0 ? bytes : 0, 1, MPI_INFO_NULL, impl_->node, &base, &impl_->window),
            "MPI_Win_allocate_shared");
  MPI_Aint allocated = 0;
  int unit = 0;
  check_mpi(MPI_Win_shared_query(impl_->window, 0, &allocated, &unit, &base), "MPI_Win_shared_query");
  auto* first = static_cast<EmulatedLinks::Link*>(base);
  if (impl_->rank == 0) std::uninitialized_default_construct_n(first, ranks);
  check_mpi(MPI_Barrier(impl_->node), "MPI_Barrier");
  impl_->links.emplace(std::span(first, static_cast<size_t>(ranks)), config, rank_of_server, bytes_per_byte, seed,
                       static_cast<uint64_t>(impl_->rank));
}

EmulatedNetwork::~EmulatedNetwork() {
  if (std::uncaught_exceptions() > 0) return;  // as for communicators: freeing is collective
  MPI_Win_free(&impl_->window);
  MPI_Comm_free(&impl_->node);
}

int EmulatedNetwork::world_rank() const { return impl_->rank; }

EmulatedNetwork::Transfer EmulatedNetwork::start(int from, int to, int64_t bytes) {
  return impl_->links->start(from, to, bytes, now_ns());
}

bool EmulatedNetwork::is_through(Transfer& transfer) { return transfer.is_through(now_ns()); }

}  // namespace hat
