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
#include "hat/device/device_buffer.hpp"

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

}  // namespace

/// Sums that begin together. NCCL puts them into its stream in two calls, each of which may go on when it has returned:
/// a sum of one number that is there when all have entered, then all sums of the bucket as one group.
///   filling -> queued        the last sum was started
///   queued -> entering       the calls of earlier buckets are through; the first call was made
///   entering -> summing      the first call is through, the second was made
///   summing -> in_stream     the second is through
///   in_stream -> done        the event behind them is reached
struct NcclAllReduce::Bucket {
  enum class Phase { filling, queued, entering, summing, in_stream, done };
  Phase phase = Phase::filling;
  std::vector<std::span<float>> sums;
  std::vector<Event> computed;  // what is summed
  Event entered;                // in NCCL's stream, as the next
  Event summed;
};

struct NcclCommunicator::Impl {
  using Bucket = NcclAllReduce::Bucket;
  using Phase = Bucket::Phase;

  Impl(int ranks, int own_rank, const Device& device, double patience_s)
      : size(ranks), rank(own_rank), timeout_s(patience_s), stream(device, "reduce"), presence(device, 1) {
    check(cudaMemsetAsync(presence.data(), 0, sizeof(float), stream.cuda()->get()), "cudaMemsetAsync");
  }
  ~Impl() {
    if (comm != nullptr) leave();
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
    stream.cuda()->make_current();  // it is the communicator's from now on
    config.blocking = 0;            // nothing here may hang: who waits looks after the other ranks
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

  void advance() {
    if (comm == nullptr) throw Error("a sum over workers was asked for after its NCCL communicator was aborted");
    while (!calling.empty()) {
      Bucket& bucket = *calling.front();
      if (bucket.phase != Phase::queued && !is_through("ncclAllReduce")) return;
      switch (bucket.phase) {
        case Phase::queued:
          stream.cuda()->make_current();
          for (const Event& event : bucket.computed) stream.wait_for(event);
          check_nccl(
              ncclAllReduce(presence.data(), presence.data(), 1, ncclFloat32, ncclSum, comm, stream.cuda()->get()),
              comm, "ncclAllReduce");
          bucket.phase = Phase::entering;
          break;
        case Phase::entering:
          bucket.entered = stream.record();
          start_sums(bucket);
          bucket.phase = Phase::summing;
          break;
        default:
          bucket.summed = stream.record();
          bucket.phase = Phase::in_stream;
          calling.pop_front();
      }
    }
    is_through("a sum over workers");  // asked for errors of what runs
  }

  void start_sums(const Bucket& bucket) const {
    stream.cuda()->make_current();
    check_nccl(ncclGroupStart(), comm, "ncclGroupStart");
    ncclResult_t first_error = ncclSuccess;
    for (const std::span<float> sum : bucket.sums) {
      const ncclResult_t result =
          ncclAllReduce(sum.data(), sum.data(), sum.size(), ncclFloat32, ncclSum, comm, stream.cuda()->get());
      if (result != ncclSuccess && result != ncclInProgress && first_error == ncclSuccess) first_error = result;
    }
    const ncclResult_t end = ncclGroupEnd();  // whatever happened inside, or the next group would belong to this one
    check_nccl(first_error, comm, "ncclAllReduce");
    check_nccl(end, comm, "ncclGroupEnd");
  }

  /// Nobody could do anything about what these say.
  void leave() noexcept {
    if (!is_idle() || std::uncaught_exceptions() > 0) return abort();
    ncclResult_t state = ncclCommFinalize(comm);
    if (state == ncclSuccess) state = ncclInProgress;  // with whom it is not over yet, is asked
    for (const double begin_s = now_s(); state == ncclInProgress && now_s() - begin_s < timeout_s;) {
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) state = ncclInternalError;
      if (state == ncclInProgress) std::this_thread::sleep_for(kBetweenLooks);
    }
    if (state != ncclSuccess) return abort();
    static_cast<void>(ncclCommDestroy(std::exchange(comm, nullptr)));
  }

  void abort() noexcept {
    if (comm == nullptr) return;
    static_cast<void>(ncclCommAbort(std::exchange(comm, nullptr)));
    calling.clear();
    filling.reset();
  }

  bool is_idle() const noexcept {
    try {
      return calling.empty() && !filling && stream.is_done();
    } catch (const std::exception&) {
      return false;
    }
  }

  int size;
  int rank;
  double timeout_s;
  Stream stream;
  DeviceBuffer<float> presence;  // a zero that everybody adds to
  ncclComm_t comm = nullptr;
  std::shared_ptr<Bucket> filling;
  std::deque<std::shared_ptr<Bucket>> calling;  // whose calls are not all through
};

bool NcclAllReduce::step() {
  using Phase = Bucket::Phase;
  if (bucket_->phase == Phase::done) return true;
  communicator_->impl_->advance();
  if (bucket_->phase != Phase::in_stream || !bucket_->summed.is_done()) return false;
  bucket_->phase = Phase::done;
  return true;
}

bool NcclAllReduce::gathering() const {
  using Phase = Bucket::Phase;
  return (bucket_->phase == Phase::summing || bucket_->phase == Phase::in_stream) && bucket_->entered.is_done();
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";  // no library
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::string NcclCommunicator::make_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
  return {id.internal, sizeof id.internal};
}

int64_t NcclCommunicator::device_bytes() {
  // NCCL's documentation: NCCL_BUFFSIZE is 4 MiB. A channel has such buffers for its neighbours in the ring and in the
  // tree, and half as much again for its other protocols.
  constexpr int64_t kChannels = 16;
  constexpr int64_t kBufferBytes = int64_t{4} << 20;
  constexpr int64_t kNeighbours = 4;
  const auto from_environment = [](const char* name, int64_t value) {
    const char* text = std::getenv(name);
    const int64_t given = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
    return given > 0 ? given : value;
  };
  return from_environment("NCCL_MAX_NCHANNELS", kChannels) * kNeighbours *
         from_environment("NCCL_BUFFSIZE", kBufferBytes) * 3 / 2;
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

NcclAllReduce NcclCommunicator::start(std::span<float> data, Event computed, InBucket place) {
  using Phase = NcclAllReduce::Bucket::Phase;
  if (!impl_->filling) impl_->filling = std::make_shared<NcclAllReduce::Bucket>();
  std::shared_ptr<NcclAllReduce::Bucket> bucket = impl_->filling;
  bucket->sums.push_back(data);
  bucket->computed.push_back(std::move(computed));
  if (place == InBucket::last) {
    bucket->phase = Phase::queued;
    impl_->calling.push_back(std::exchange(impl_->filling, nullptr));
    impl_->advance();
  }
  return {*this, std::move(bucket)};
}

void NcclCommunicator::abort() { impl_->abort(); }

}  // namespace hat
