#include "hat/comm/communicator.hpp"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <numeric>

#include "check.hpp"
#include "hat/comm/backoff.hpp"
#include "hat/comm/emulated_network.hpp"
#include "hat/comm/shared_memory.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/silence.hpp"

namespace hat {

namespace {
// MPI counts are ints; larger transfers go in pieces of this size, the same on both sides.
constexpr size_t kPieceBytes = size_t{1} << 30;
}  // namespace

struct Request::Impl {
  std::vector<MPI_Request> requests;
  std::function<bool()> gate;  // of an emulated transfer: false until it is through

  Impl() = default;
  ~Impl() {
    // A rank that fails leaves by abort: what it has under way may never complete, because others wait for it.
    if (std::uncaught_exceptions() > 0) return;
    pass_gate();
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool try_gate() {
    if (gate && gate()) gate = nullptr;
    return !gate;
  }
  void pass_gate() {
    for (Backoff backoff; !try_gate();) backoff.pause();
  }
};

Request::Request() = default;
Request::Request(Request&&) noexcept = default;
Request& Request::operator=(Request&&) noexcept = default;
Request::~Request() = default;

bool Request::test() {
  if (!impl_) return true;
  if (!impl_->try_gate()) return false;
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(impl_->requests.size()), impl_->requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  if (done != 0) impl_.reset();
  return done != 0;
}

void Request::wait() {
  if (!impl_) return;
  impl_->pass_gate();
  check_mpi(MPI_Waitall(static_cast<int>(impl_->requests.size()), impl_->requests.data(), MPI_STATUSES_IGNORE),
            "MPI_Waitall");
  impl_.reset();
}

struct Communicator::Impl {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  EmulatedNetwork* network = nullptr;  // null: none
  std::vector<int> world_ranks;        // with one: of each rank here
  struct Sends {
    int64_t started = 0;
    int64_t left = 0;
  };
  std::vector<Sends> transfers;  // with one: to each rank
  std::function<void()> look;    // while a collective waits; empty: nobody does

  explicit Impl(MPI_Comm handle) : comm(handle) {
    if (comm == MPI_COMM_NULL) return;
    check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  }
  ~Impl() {
    // A rank that fails leaves by abort: freeing is collective and would wait for ranks that never come.
    if (comm != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Runs a collective to its end. `start(buffers, comm, request)` begins it on memory of `buffers`, which is left to
  /// MPI for ever when `look` throws.
  template <class Buffers, class Start>
  Buffers collective(Buffers begin, const char* call, Start start) const {
    auto buffers = std::make_unique<Buffers>(std::move(begin));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(start(*buffers, comm, &request), call);
    if (!look) {
      check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), call);
      return std::move(*buffers);
    }
    for (Backoff backoff;; backoff.pause()) {
      int done = 0;
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), call);
      if (done != 0) return std::move(*buffers);
      try {
        look();
      } catch (...) {
        (void)buffers.release();
        throw;
      }
    }
  }
};

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Communicator Communicator::world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return Communicator(std::make_unique<Impl>(comm));
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }

Communicator Communicator::split(int colour) const {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(impl_->comm, colour < 0 ? MPI_UNDEFINED : colour, impl_->rank, &comm), "MPI_Comm_split");
  return Communicator(std::make_unique<Impl>(comm));
}

Communicator Communicator::subset(const std::vector<int>& ranks) const {
  constexpr int kTag = 14;  // apart from those of other messages
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(impl_->comm, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(impl_->comm, some, kTag, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return Communicator(std::make_unique<Impl>(comm));
}

std::vector<int> Communicator::node_of_rank() const {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  check_mpi(MPI_Get_processor_name(name, &length), "MPI_Get_processor_name");
  std::map<std::string, int> numbers;
  std::vector<int> nodes;
  for (const std::string& node : all_gather(std::string(name, static_cast<size_t>(length)))) {
    nodes.push_back(numbers.emplace(node, static_cast<int>(numbers.size())).first->second);
  }
  return nodes;
}

void Communicator::look_while_waiting(std::function<void()> look) const { impl_->look = std::move(look); }

void Communicator::barrier() const {
  impl_->collective(0, "MPI_Ibarrier",
                    [](int&, MPI_Comm comm, MPI_Request* request) { return MPI_Ibarrier(comm, request); });
}

void Communicator::wait_barrier(double timeout_s, const std::string& what, const std::function<bool()>& hears) const {
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  request.impl_->requests.push_back(MPI_REQUEST_NULL);
  check_mpi(MPI_Ibarrier(impl_->comm, &request.impl_->requests.back()), "MPI_Ibarrier");
  Silence silence(timeout_s);
  for (Backoff backoff; !request.test(); backoff.pause()) {
    if (hears && hears()) silence.end();
    if (silence.is_too_long()) {
      throw Error(fmt::format("waited {:.0f} s (timeout_s) for {}", timeout_s, what));
    }
  }
}

namespace {
template <class T>
struct Reduced {
  T own;
  T result;
};
}  // namespace

int64_t Communicator::all_reduce_max(int64_t value) const {
  return impl_
      ->collective(Reduced<int64_t>{value, 0}, "MPI_Iallreduce",
                   [](Reduced<int64_t>& reduced, MPI_Comm comm, MPI_Request* request) {
                     return MPI_Iallreduce(&reduced.own, &reduced.result, 1, MPI_INT64_T, MPI_MAX, comm, request);
                   })
      .result;
}

double Communicator::all_reduce_sum(double value) const {
  return impl_
      ->collective(Reduced<double>{value, 0}, "MPI_Iallreduce",
                   [](Reduced<double>& reduced, MPI_Comm comm, MPI_Request* request) {
                     return MPI_Iallreduce(&reduced.own, &reduced.result, 1, MPI_DOUBLE, MPI_SUM, comm, request);
                   })
      .result;
}

std::string Communicator::broadcast(const std::string& text, int root) const {
  const auto size = impl_->collective(static_cast<int64_t>(text.size()), "MPI_Ibcast",
                                      [root](int64_t& bytes, MPI_Comm comm, MPI_Request* request) {
                                        return MPI_Ibcast(&bytes, 1, MPI_INT64_T, root, comm, request);
                                      });
  std::string result = text;
  result.resize(static_cast<size_t>(size));
  return impl_->collective(
      std::move(result), "MPI_Ibcast", [root](std::string& bytes, MPI_Comm comm, MPI_Request* request) {
        return MPI_Ibcast(bytes.data(), static_cast<int>(bytes.size()), MPI_CHAR, root, comm, request);
      });
}

std::vector<std::string> Communicator::all_gather(const std::string& text) const {
  struct Gathered {
    std::string own;
    int own_size = 0;
    std::vector<int> sizes;
    std::vector<int> starts;
    std::string all;
  };
  Gathered begin{.own = text,
                 .own_size = static_cast<int>(text.size()),
                 .sizes = std::vector<int>(static_cast<size_t>(impl_->size)),
                 .starts = {0},
                 .all = {}};
  Gathered gathered =
      impl_->collective(std::move(begin), "MPI_Iallgather", [](Gathered& sizes, MPI_Comm comm, MPI_Request* request) {
        return MPI_Iallgather(&sizes.own_size, 1, MPI_INT, sizes.sizes.data(), 1, MPI_INT, comm, request);
      });
  for (const int size : gathered.sizes) gathered.starts.push_back(gathered.starts.back() + size);
  gathered.all.resize(static_cast<size_t>(gathered.starts.back()));
  gathered = impl_->collective(
      std::move(gathered), "MPI_Iallgatherv", [](Gathered& texts, MPI_Comm comm, MPI_Request* request) {
        return MPI_Iallgatherv(texts.own.data(), texts.own_size, MPI_CHAR, texts.all.data(), texts.sizes.data(),
                               texts.starts.data(), MPI_CHAR, comm, request);
      });
  std::vector<std::string> result;
  for (size_t i = 0; i < gathered.sizes.size(); ++i) {
    result.push_back(
        gathered.all.substr(static_cast<size_t>(gathered.starts[i]), static_cast<size_t>(gathered.sizes[i])));
  }
  return result;
}

namespace {

void send_pieces(std::span<const std::byte> data, int destination, int tag, MPI_Comm comm,
                 std::vector<MPI_Request>& requests) {
  for (size_t done = 0; done < data.size() || done == 0; done += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, data.size() - done);
    requests.push_back(MPI_REQUEST_NULL);
    check_mpi(
        MPI_Isend(data.data() + done, static_cast<int>(piece), MPI_BYTE, destination, tag, comm, &requests.back()),
        "MPI_Isend");
  }
}

}  // namespace

Request Communicator::start_send(std::span<const std::byte> data, int destination, int tag) const {
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  send_pieces(data, destination, tag, impl_->comm, request.impl_->requests);
  return request;
}

Request Communicator::start_transfer(std::span<const std::byte> data, int destination, int tag, double charge) const {
  if (impl_->network == nullptr) return start_send(data, destination, tag);
  EmulatedNetwork& network = *impl_->network;
  const int to = impl_->world_ranks[static_cast<size_t>(destination)];
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  auto gate = [comm = impl_.get(), sent = request.impl_.get(), data, destination, tag,
               number = impl_->transfers[static_cast<size_t>(destination)].started++,
               transfer = network.start(network.world_rank(), to,
                                        std::llround(charge * static_cast<double>(data.size())))]() mutable {
    int64_t& left = comm->transfers[static_cast<size_t>(destination)].left;
    if (!EmulatedNetwork::is_through(transfer) || left != number) return false;
    ++left;
    send_pieces(data, destination, tag, comm->comm, sent->requests);
    return true;
  };
  request.impl_->gate = std::move(gate);
  return request;
}

void Communicator::charge_transfers_to(EmulatedNetwork& network) const {
  const auto size = static_cast<size_t>(impl_->size);
  std::vector<int> own_ranks(size);
  std::iota(own_ranks.begin(), own_ranks.end(), 0);
  MPI_Group own = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(impl_->comm, &own), "MPI_Comm_group");
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  impl_->world_ranks.resize(size);
  check_mpi(MPI_Group_translate_ranks(own, impl_->size, own_ranks.data(), world, impl_->world_ranks.data()),
            "MPI_Group_translate_ranks");
  check_mpi(MPI_Group_free(&own), "MPI_Group_free");
  check_mpi(MPI_Group_free(&world), "MPI_Group_free");
  impl_->transfers.assign(size, {});
  impl_->network = &network;
}

Request Communicator::start_receive(std::span<std::byte> data, int source, int tag) const {
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  for (size_t done = 0; done < data.size() || done == 0; done += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, data.size() - done);
    request.impl_->requests.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Irecv(data.data() + done, static_cast<int>(piece), MPI_BYTE, source, tag, impl_->comm,
                        &request.impl_->requests.back()),
              "MPI_Irecv");
  }
  return request;
}

std::optional<Incoming> Communicator::try_receive(int tag) const {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, tag, impl_->comm, &found, &message, &status), "MPI_Improbe");
  if (found == 0) return std::nullopt;
  int count = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  Incoming incoming{
      .source = status.MPI_SOURCE, .tag = tag, .data = std::vector<std::byte>(static_cast<size_t>(count))};
  check_mpi(MPI_Mrecv(incoming.data.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
  return incoming;
}

struct Window::Impl {
  MPI_Win window = MPI_WIN_NULL;
  std::byte* base = nullptr;
  EmulatedNetwork* network = nullptr;  // null: none
  std::vector<int> world_ranks;        // with one: of each rank of the communicator
};

Window::Window(const Communicator& communicator, int64_t local_bytes) : impl_(std::make_unique<Impl>()) {
  const int code = MPI_Win_allocate(static_cast<MPI_Aint>(local_bytes), 1, MPI_INFO_NULL, communicator.impl_->comm,
                                    &impl_->base, &impl_->window);
  if (code == MPI_ERR_WIN) {
    throw Error(
        "this MPI cannot make one-sided windows between these hosts (MPI_Win_allocate: MPI_ERR_WIN); with Open MPI "
        "over "
        "TCP set OMPI_MCA_osc=pt2pt,rdma,sm (mpirun --mca osc pt2pt,rdma,sm), or unset OMPI_MCA_osc");
  }
  check_mpi(code, "MPI_Win_allocate");
  check_mpi(MPI_Win_set_errhandler(impl_->window, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, impl_->window), "MPI_Win_lock_all");
  impl_->network = communicator.impl_->network;
  impl_->world_ranks = communicator.impl_->world_ranks;
}

Window::~Window() {
  if (std::uncaught_exceptions() > 0) return;  // as for communicators: freeing is collective
  MPI_Win_unlock_all(impl_->window);
  MPI_Win_free(&impl_->window);
}

std::byte* Window::local() const { return impl_->base; }

Request Window::start_get(std::span<std::byte> destination, int target, int64_t offset) const {
  Request request;
  request.impl_ = std::make_unique<Request::Impl>();
  for (size_t done = 0; done < destination.size(); done += kPieceBytes) {
    const int piece = static_cast<int>(std::min(kPieceBytes, destination.size() - done));
    request.impl_->requests.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Rget(destination.data() + done, piece, MPI_BYTE, target,
                       static_cast<MPI_Aint>(offset) + static_cast<MPI_Aint>(done), piece, MPI_BYTE, impl_->window,
                       &request.impl_->requests.back()),
              "MPI_Rget");
  }
  return request;
}

Request Window::start_transfer(std::span<std::byte> destination, int target, int64_t offset) const {
  Request request = start_get(destination, target, offset);
  if (impl_->network == nullptr) return request;
  EmulatedNetwork& network = *impl_->network;
  const int from = impl_->world_ranks[static_cast<size_t>(target)];
  request.impl_->gate = [transfer = network.start(from, network.world_rank(), std::ssize(destination))]() mutable {
    return EmulatedNetwork::is_through(transfer);
  };
  return request;
}

void Window::sync() const { check_mpi(MPI_Win_sync(impl_->window), "MPI_Win_sync"); }

struct SharedMemory::Impl {
  MPI_Win window = MPI_WIN_NULL;
  std::byte* data = nullptr;
};

// All of it is the part of rank 0.
SharedMemory::SharedMemory(const Communicator& node, int64_t bytes) : impl_(std::make_unique<Impl>()) {
  constexpr int64_t kAlignment = 64;
  const MPI_Aint size = node.rank() == 0 ? bytes + kAlignment : 0;
  void* base = nullptr;
  check_mpi(MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, node.impl_->comm, &base, &impl_->window),
            "MPI_Win_allocate_shared");
  MPI_Aint allocated = 0;
  int unit = 0;
  check_mpi(MPI_Win_shared_query(impl_->window, 0, &allocated, &unit, &base), "MPI_Win_shared_query");
  size_t space = static_cast<size_t>(bytes + kAlignment);
  impl_->data = static_cast<std::byte*>(std::align(kAlignment, static_cast<size_t>(bytes), base, space));
  if (node.rank() == 0) std::memset(impl_->data, 0, static_cast<size_t>(bytes));
  node.barrier();
}

SharedMemory::~SharedMemory() {
  if (std::uncaught_exceptions() > 0) return;  // freeing is collective, and others may never come to it
  MPI_Win_free(&impl_->window);
}

std::byte* SharedMemory::data() const { return impl_->data; }

}  // namespace hat
