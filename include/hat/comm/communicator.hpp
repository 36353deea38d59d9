#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hat {

class EmulatedNetwork;

/// Communication under way. Move-only; must be complete (test() or wait() said so) before the data it uses goes away:
/// the destructor waits, except while an exception unwinds: then nothing can be waited for, and the job must be aborted
/// without another call of MPI.
class Request {
 public:
  Request();
  ~Request();
  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;

  /// True once complete; never blocks. A default-made request is complete.
  bool test();
  void wait();

 private:
  friend class Communicator;
  friend class Window;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A message that has arrived.
struct Incoming {
  int source = 0;
  int tag = 0;
  std::vector<std::byte> data;
};

/// An MPI communicator, owned. All calls of a rank come from one thread. Errors throw Error with MPI's text.
class Communicator {
 public:
  /// A duplicate of MPI_COMM_WORLD.
  static Communicator world();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const;
  int size() const;

  /// Collective. Ranks with the same colour form a new communicator, ordered by rank; a negative colour gives an empty
  /// one (size 0), on which nothing may be called.
  Communicator split(int colour) const;
  /// A communicator of these ranks alone, ascending; collective over them, so it can be made without those that died.
  Communicator subset(const std::vector<int>& ranks) const;
  /// Collective: for each rank the number of its node, counted from 0 in rank order.
  std::vector<int> node_of_rank() const;

  /// From now on, `look` is called again and again while barrier, all_reduce, broadcast, all_gather and node_of_rank
  /// wait for other ranks (RankWatch: one that is lost will never come). When it throws, that leaves the collective,
  /// which can never complete then; nothing more may be done on this communicator.
  void look_while_waiting(std::function<void()> look) const;

  void barrier() const;
  /// Like barrier, but leaves the core to others while it waits, and throws Error naming `what` after `timeout_s` in
  /// which `hears` said no.
  void wait_barrier(double timeout_s, const std::string& what, const std::function<bool()>& hears = {}) const;
  int64_t all_reduce_max(int64_t value) const;
  double all_reduce_sum(double value) const;
  /// Text of the root, on all ranks.
  std::string broadcast(const std::string& text, int root) const;
  /// One text from each rank, on all ranks.
  std::vector<std::string> all_gather(const std::string& text) const;

  /// Any number of bytes: more than 1 GiB travels as several messages, on both sides alike.
  Request start_send(std::span<const std::byte> data, int destination, int tag) const;
  Request start_receive(std::span<std::byte> data, int source, int tag) const;
  /// A send that takes its time on the emulated network, if there is one: the message leaves when the transfer is
  /// through, and nothing leaves before what went to the same rank in this way earlier. Without one: start_send.
  /// `charge`: the network counts each byte as so many.
  Request start_transfer(std::span<const std::byte> data, int destination, int tag, double charge = 1) const;
  /// From now on transfers on this communicator, and on windows made on it, are charged to `network`, which outlives
  /// their requests.
  void charge_transfers_to(EmulatedNetwork& network) const;

  /// A message of this tag from anybody, if one has arrived whole; at most 1 GiB. Never blocks for long: the message is
  /// only received once it was seen.
  std::optional<Incoming> try_receive(int tag) const;

 private:
  friend class Window;
  friend class SharedMemory;
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Memory of this rank that others may read one-sidedly (MPI_Win_allocate, one passive epoch under lock_all from
/// construction to destruction). Construction and destruction are collective.
class Window {
 public:
  /// Throws Error saying which setting repairs it when the network in use cannot make windows.
  Window(const Communicator& communicator, int64_t local_bytes);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::byte* local() const;
  /// Starts reading `destination.size()` bytes at `offset` of the memory of rank `target`. Any number of bytes.
  Request start_get(std::span<std::byte> destination, int target, int64_t offset) const;
  /// The same, but complete only when the transfer is through on the emulated network, if there is one.
  Request start_transfer(std::span<std::byte> destination, int target, int64_t offset) const;
  /// Makes this rank's own stores visible to gets, and the reverse (MPI_Win_sync); also lets MPI make progress.
  void sync() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
