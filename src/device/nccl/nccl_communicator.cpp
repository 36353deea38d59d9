#include "hat/device/nccl_communicator.hpp"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/device/cuda_stream.hpp"

namespace hat {

namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(1);

std::string text_of(ncclResult_t result, ncclComm_t comm, const char* what) {
  const char* detail = ncclGetLastError(comm);
  return detail == nullptr || *detail == '\0' ? fmt::format("{}: {}", what, ncclGetErrorString(result))
                                              : fmt::format("{}: {} ({})", what, ncclGetErrorString(result), detail);
}

/// Throws Error with NCCL's own text. On communicators that do not block, a call that goes on is no error.
void check_nccl(ncclResult_t result, ncclComm_t comm, const char* what) {
  if (result != ncclSuccess && result != ncclInProgress) throw Error(text_of(result, comm, what));
}

/// A moment in a stream.
class Mark {
 public:
  Mark() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Mark() { static_cast<void>(cudaEventDestroy(event_)); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void record(const CudaStream& stream) { check(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }
  void hold_back(const CudaStream& stream) const {
    check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
  }
  bool is_reached() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) check(state, "cudaEventQuery");
    return state == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

/// Sums that begin together. NCCL puts them into its stream in two calls, each of which may go on when it has returned:
/// a sum of one number that is there when all have entered, then all sums of the bucket as one group.
///   filling -> queued        the last sum was started
///   queued -> entering       the calls of earlier buckets are through; the first call was made
///   entering -> summing      the first call is through, the second was made
///   summing -> in_stream     the second is through
///   in_stream -> done        the event behind them is reached
///   done -> filling          used again when nobody holds a sum of it any more
struct NcclAllReduce::Bucket {
  enum class Phase { filling, queued, entering, summing, in_stream, done };
  Phase phase = Phase::filling;
  std::vector<std::span<float>> sums;
  Mark computed;  // in the stream that computes what is summed
  Mark entered;   // in NCCL's
  Mark summed;
};

struct NcclCommunicator::Impl {
  using Bucket = NcclAllReduce::Bucket;
  using Phase = Bucket::Phase;

  Impl(int ranks, int own_rank, const Device& on, double patience_s)
      : size(ranks), rank(own_rank), device(on.index), timeout_s(patience_s), stream(on.index) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, sizeof(float)), "cudaMalloc");
    presence = static_cast<float*>(memory);
    check(cudaMemsetAsync(presence, 0, sizeof(float), stream.get()), "cudaMemsetAsync");
  }

  ~Impl() {
    if (comm != nullptr) leave();
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaFree(presence));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Whether the newest call is through. Throws what NCCL has come upon since it was asked last.
  bool is_through(const char* what) const {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm, &state), comm, "ncclCommGetAsyncError");
    check_nccl(state, comm, what);
    return state == ncclSuccess;
  }

  void join(const std::string& id, const std::function<void()>& look) {
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal) throw Error("the id of an NCCL communicator has the wrong length");
    std::memcpy(unique.internal, id.data(), sizeof unique.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // nothing here may hang: who waits looks after the other ranks
    check_nccl(ncclCommInitRankConfig(&comm, size, unique, rank, &config), comm, "ncclCommInitRankConfig");
    for (const double begin_s = now_s(); !is_through("joining the NCCL communicator");) {
      if (look) look();
      if (now_s() - begin_s > timeout_s) {
        throw Error(fmt::format("worker {} waited {} s (timeout_s) for the other {} to join the NCCL communicator",
                                rank, timeout_s, size == 2 ? "worker" : "workers"));
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  std::shared_ptr<Bucket> empty_bucket() {
    for (const std::shared_ptr<Bucket>& bucket : buckets) {
      if (bucket->phase != Phase::done || bucket.use_count() > 1) continue;
      bucket->phase = Phase::filling;
      bucket->sums.clear();
      return bucket;
    }
    return buckets.emplace_back(std::make_shared<Bucket>());
  }

  void advance() {
    if (comm == nullptr) throw Error("a sum over workers was asked for after its NCCL communicator was aborted");
    while (!calling.empty()) {
      Bucket& bucket = *calling.front();
      if (bucket.phase != Phase::queued && !is_through("ncclAllReduce")) return;
      switch (bucket.phase) {
        case Phase::queued:
          bucket.computed.hold_back(stream);
          check_nccl(ncclAllReduce(presence, presence, 1, ncclFloat32, ncclSum, comm, stream.get()), comm,
                     "ncclAllReduce");
          bucket.phase = Phase::entering;
          break;
        case Phase::entering:
          bucket.entered.record(stream);
          start_sums(bucket);
          bucket.phase = Phase::summing;
          break;
        default:
          bucket.summed.record(stream);
          bucket.phase = Phase::in_stream;
          calling.pop_front();
      }
    }
    is_through("a sum over workers");  // asked for errors of what runs
  }

  void start_sums(const Bucket& bucket) const {
    check_nccl(ncclGroupStart(), comm, "ncclGroupStart");
    ncclResult_t first_error = ncclSuccess;
    for (const std::span<float> sum : bucket.sums) {
      const ncclResult_t result =
          ncclAllReduce(sum.data(), sum.data(), sum.size(), ncclFloat32, ncclSum, comm, stream.get());
      if (result != ncclSuccess && result != ncclInProgress && first_error == ncclSuccess) first_error = result;
    }
    const ncclResult_t end = ncclGroupEnd();  // whatever happened inside, or the next group would belong to this one
    check_nccl(first_error, comm, "ncclAllReduce");
    check_nccl(end, comm, "ncclGroupEnd");
  }

  /// Nobody could do anything about what these say.
  void leave() noexcept {
    static_cast<void>(cudaSetDevice(device));
    const bool is_idle = std::ranges::all_of(buckets, [](const auto& bucket) { return bucket->phase == Phase::done; });
    if (!is_idle || std::uncaught_exceptions() > 0 || ncclCommFinalize(comm) > ncclInProgress) return abort();
    ncclResult_t state = ncclInProgress;
    for (const double begin_s = now_s(); state == ncclInProgress && now_s() - begin_s < timeout_s;) {
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) state = ncclInternalError;
      if (state == ncclInProgress) std::this_thread::sleep_for(kBetweenLooks);
    }
    if (state != ncclSuccess) return abort();
    static_cast<void>(ncclCommDestroy(std::exchange(comm, nullptr)));
  }

  void abort() noexcept {
    if (comm == nullptr) return;
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(ncclCommAbort(std::exchange(comm, nullptr)));
    calling.clear();
    filling.reset();
  }

  int size;
  int rank;
  int device;
  double timeout_s;
  CudaStream stream;
  float* presence = nullptr;  // device memory: a zero that everybody adds to
  ncclComm_t comm = nullptr;
  std::vector<std::shared_ptr<Bucket>> buckets;  // all there are
  std::shared_ptr<Bucket> filling;
  std::deque<std::shared_ptr<Bucket>> calling;  // whose calls are not all through
};

bool NcclAllReduce::step() {
  using Phase = Bucket::Phase;
  if (bucket_->phase == Phase::done) return true;
  communicator_->impl_->advance();
  if (bucket_->phase != Phase::in_stream || !bucket_->summed.is_reached()) return false;
  bucket_->phase = Phase::done;
  return true;
}

bool NcclAllReduce::gathering() const {
  using Phase = Bucket::Phase;
  return (bucket_->phase == Phase::summing || bucket_->phase == Phase::in_stream) && bucket_->entered.is_reached();
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";  // no library
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

void choose_nccl_algorithm(const std::string& algorithm) {
  if (algorithm == "ring") setenv("NCCL_ALGO", "Ring", 0);
  if (algorithm == "tree") setenv("NCCL_ALGO", "Tree", 0);
}

std::string NcclCommunicator::make_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
  return {id.internal, sizeof id.internal};
}

NcclCommunicator::NcclCommunicator(const std::string& id, int size, int rank, const Device& device, double timeout_s,
                                   const std::function<void()>& look)
    : impl_(std::make_unique<Impl>(size, rank, device, timeout_s)) {
  try {
    impl_->join(id, look);
  } catch (...) {
    impl_->abort();
    throw;
  }
}
NcclCommunicator::~NcclCommunicator() = default;

int NcclCommunicator::size() const { return impl_->size; }
int NcclCommunicator::rank() const { return impl_->rank; }

NcclAllReduce NcclCommunicator::start(std::span<float> data, const Stream& compute, InBucket place) {
  using Phase = NcclAllReduce::Bucket::Phase;
  if (!impl_->filling) impl_->filling = impl_->empty_bucket();
  std::shared_ptr<NcclAllReduce::Bucket> bucket = impl_->filling;
  bucket->sums.push_back(data);
  if (place == InBucket::last) {
    bucket->computed.record(*compute.cuda());
    bucket->phase = Phase::queued;
    impl_->calling.push_back(std::exchange(impl_->filling, nullptr));
    impl_->advance();
  }
  return {*this, std::move(bucket)};
}

void NcclCommunicator::abort() { impl_->abort(); }

}  // namespace hat
