#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "hat/config/deck.hpp"
#include "hat/device/device.hpp"

namespace hat {

/// Version of the NCCL that is used here, "2.28.9"; empty: this build has none, or its library is not on this machine.
std::string nccl_version();

/// Sets NCCL_ALGO, unless the user has set it or NCCL is to choose by itself. To be called before the first
/// communicator of the process.
void choose_nccl_algorithm(NcclAlgorithm algorithm);
/// NCCL_ALGO is set, and not by choose_nccl_algorithm.
bool user_chose_nccl_algorithm();

class NcclCommunicator;

/// The sum of one buffer over all workers, under way: the interface of RingAllReduce.
class NcclAllReduce {
 public:
  /// Never blocks. True once every worker's sum is in the buffer; the host may then use it, and so may work that is put
  /// into any stream from now on. Throws Error with NCCL's text when the sum cannot come about.
  bool step();
  /// Every worker has entered, and what is left is the sum itself.
  bool gathering() const;

 private:
  friend class NcclCommunicator;
  struct Bucket;
  NcclAllReduce(NcclCommunicator& communicator, std::shared_ptr<Bucket> bucket)
      : communicator_(&communicator), bucket_(std::move(bucket)) {}
  [[maybe_unused]] NcclCommunicator* communicator_;  // a build without NCCL has no use for it
  std::shared_ptr<Bucket> bucket_;
};

/// Who sums with NCCL, one GPU each. Owns NCCL's communicator and the stream in which sums run, beside whatever the
/// device computes. All calls of a process come from one thread; none but the constructor and the destructor waits.
///
/// All workers start the same sums in the same order, in the same buckets: NCCL matches calls by their order alone.
class NcclCommunicator {
 public:
  enum class InBucket { more_follow, last };

  /// Names a new communicator: made by one process, and told to the others (128 bytes, any values). Throws Error where
  /// the build has no NCCL.
  static std::string make_id();

  /// About what a communicator takes of a device beside the buffers that are summed: those that its channels send from
  /// and receive in, as many and as large as NCCL makes them unless the environment says otherwise. 0 without NCCL.
  static int64_t device_bytes();

  /// Joins the other `size` - 1 processes that construct with the same id. `look` is called again and again meanwhile
  /// and may throw. Throws Error when they are not all there within `timeout_s`.
  NcclCommunicator(const std::string& id, int size, int rank, const Device& device, double timeout_s,
                   const std::function<void()>& look);
  /// Waits at most `timeout_s` for the others to end as well; aborts while an exception unwinds, or where sums are
  /// under way.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int size() const;
  int rank() const;

  /// Sums `data` (device memory, at least one element) over all workers, in place, once `computed` has come. `data`
  /// stays in place and unchanged until `step` said that the sum is there. Sums of a bucket begin together, when the
  /// last is started.
  NcclAllReduce start(std::span<float> data, Event computed, InBucket place);

  /// Ends what is under way without the other workers, some of whom may be gone; device memory is free of it then.
  /// Nothing more can be started.
  void abort();

 private:
  friend class NcclAllReduce;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
