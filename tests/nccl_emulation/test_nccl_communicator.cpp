#include <nccl.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "hat/comm/ring_all_reduce.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/random.hpp"
#include "hat/device/cuda_stream.hpp"
#include "hat/device/nccl_communicator.hpp"
#include "mpi_test_main.hpp"

// The product's communicator on emulated devices, one for each rank; and that the emulation shows what it is there for.

namespace hat {
namespace {

using InBucket = NcclCommunicator::InBucket;
using Floats = std::vector<float>;

constexpr double kTimeout_s = 20;
const Device kGpu{.kind = DeviceKind::cuda, .index = 0, .threads = 1};

/// Device memory of `values`, copied there by the stream: whoever does not wait for that finds NaN.
class OnDevice {
 public:
  OnDevice(const CudaStream& stream, const Floats& values) : size_(values.size()), host_(values) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, values.size() * sizeof(float)), "cudaMalloc");
    data_ = static_cast<float*>(memory);
    check(cudaMemcpyAsync(data_, host_.data(), size_ * sizeof(float), cudaMemcpyHostToDevice, stream.get()), "copy");
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  std::span<float> span() { return {data_, size_}; }
  Floats values(const CudaStream& stream) const {
    Floats result(size_);
    check(cudaMemcpyAsync(result.data(), data_, size_ * sizeof(float), cudaMemcpyDeviceToHost, stream.get()), "copy");
    stream.synchronize();
    return result;
  }

 private:
  size_t size_;
  Floats host_;
  float* data_ = nullptr;
};

Floats random_of(int rank, int64_t count, uint64_t which = 0) {
  Floats values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random_normal(7, static_cast<uint64_t>(rank) + 100 * which, i));
  }
  return values;
}

template <class Step>
void finish(Step step) {
  const double begin_s = now_s();
  while (!step()) {
    if (now_s() - begin_s > kTimeout_s) throw Error("it does not end");
    std::this_thread::yield();
  }
}

/// What the ring over MPI makes of it, to rounding.
void expect_ring_sum(const Communicator& workers, const Floats& sum, Floats own) {
  RingAllReduce ring(workers, own, 5);
  finish([&] { return ring.step(); });
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    difference += std::pow(static_cast<double>(sum[i]) - static_cast<double>(own[i]), 2);
    norm += std::pow(static_cast<double>(own[i]), 2);
  }
  EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm));
}

std::unique_ptr<NcclCommunicator> join(const Communicator& workers, double timeout_s = kTimeout_s) {
  const std::string id = workers.broadcast(workers.rank() == 0 ? NcclCommunicator::make_id() : "", 0);
  return std::make_unique<NcclCommunicator>(id, workers.size(), workers.rank(), kGpu, timeout_s, nullptr);
}

std::string what_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct NcclSums : testing::Test {
  Communicator world = Communicator::world();
  CudaStream cuda{0};
  Stream compute{kGpu, cuda};
  bool is_last = world.rank() == world.size() - 1;
};

TEST_F(NcclSums, AreThoseOfTheRingOverMpi) {
  const auto nccl = join(world);
  EXPECT_EQ(nccl->size(), world.size());
  EXPECT_EQ(nccl->rank(), world.rank());
  const int p = world.size();
  for (const int64_t count : {1, p, p + 1, 1000, 100003}) {
    const Floats own = random_of(world.rank(), count);
    OnDevice data(cuda, own);
    NcclAllReduce sum = nccl->start(data.span(), compute.record(), InBucket::last);
    finish([&] { return sum.step(); });
    EXPECT_TRUE(sum.step()) << "a finished sum stays finished";
    EXPECT_FALSE(sum.gathering());
    expect_ring_sum(world, data.values(cuda), own);
  }
}

TEST_F(NcclSums, BucketsGoOnBesideEachOther) {
  constexpr int kSums = 7;
  const auto nccl = join(world);
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::unique_ptr<OnDevice>> data;
    std::vector<std::pair<int, NcclAllReduce>> sums;
    for (int i = 0; i < kSums; ++i) {
      data.push_back(
          std::make_unique<OnDevice>(cuda, random_of(world.rank(), 100 + 901 * i, static_cast<uint64_t>(i))));
      const bool ends = i == 0 || i == 3 || i == kSums - 1;  // buckets of one, three and three
      sums.emplace_back(
          i, nccl->start(data.back()->span(), compute.record(), ends ? InBucket::last : InBucket::more_follow));
    }
    for (uint64_t round = 0; !sums.empty(); ++round) {  // asked in another order by every rank
      const auto pick =
          static_cast<std::ptrdiff_t>(random_below(5, static_cast<uint64_t>(world.rank()), round, sums.size()));
      if (sums[static_cast<size_t>(pick)].second.step()) sums.erase(sums.begin() + pick);
      std::this_thread::yield();
    }
    for (int i = 0; i < kSums; ++i) {
      expect_ring_sum(world, data[static_cast<size_t>(i)]->values(cuda),
                      random_of(world.rank(), 100 + 901 * i, static_cast<uint64_t>(i)));
    }
  }
}

TEST_F(NcclSums, NothingBeginsBeforeTheBucketIsFull) {
  const auto nccl = join(world);
  const Floats own = random_of(world.rank(), 500);
  OnDevice first(cuda, own);
  OnDevice second(cuda, own);
  NcclAllReduce sum = nccl->start(first.span(), compute.record(), InBucket::more_follow);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(sum.step());
  NcclAllReduce other = nccl->start(second.span(), compute.record(), InBucket::last);
  finish([&] { return sum.step() && other.step(); });
  expect_ring_sum(world, first.values(cuda), own);
}

TEST_F(NcclSums, GatherOnlyWhenEveryRankHasEntered) {
  const auto nccl = join(world);
  const Floats own = random_of(world.rank(), 5000);
  OnDevice data(cuda, own);
  std::optional<NcclAllReduce> sum;
  if (!is_last) {
    sum.emplace(nccl->start(data.span(), compute.record(), InBucket::last));
    for (int i = 0; i < 50; ++i) {
      EXPECT_FALSE(sum->step());
      EXPECT_FALSE(sum->gathering());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  world.barrier();
  if (is_last) sum.emplace(nccl->start(data.span(), compute.record(), InBucket::last));
  bool gathered = false;
  finish([&] {
    const bool done = sum->step();
    gathered = gathered || sum->gathering();
    return done;
  });
  EXPECT_TRUE(gathered);
  expect_ring_sum(world, data.values(cuda), own);
}

TEST_F(NcclSums, SurvivorsAbortAndGoOn) {
  auto nccl = join(world);
  const Floats own = random_of(world.rank(), 3000);
  std::vector<int> survivors(static_cast<size_t>(world.size() - 1));
  std::iota(survivors.begin(), survivors.end(), 0);
  if (!is_last) {  // who never comes
    const double begin_s = now_s();
    {
      OnDevice data(cuda, own);
      NcclAllReduce sum = nccl->start(data.span(), compute.record(), InBucket::last);
      while (now_s() - begin_s < 0.3) EXPECT_FALSE(sum.step());
      nccl->abort();
      EXPECT_EQ(what_of([&] { sum.step(); }),
                "a sum over workers was asked for after its NCCL communicator was aborted");
      // Its memory can be freed: the device waits for nobody any more.
    }
    nccl.reset();
    EXPECT_LT(now_s() - begin_s, 5);
    const Communicator rest = world.subset(survivors);
    nccl = join(rest);
    OnDevice data(cuda, own);
    NcclAllReduce sum = nccl->start(data.span(), compute.record(), InBucket::last);
    finish([&] { return sum.step(); });
    expect_ring_sum(rest, data.values(cuda), own);
  }
  world.barrier();
  if (is_last) nccl->abort();
}

TEST_F(NcclSums, JoiningHasATimeout) {
  const std::string id = world.broadcast(world.rank() == 0 ? NcclCommunicator::make_id() : "", 0);
  if (!is_last) {
    const std::string line = what_of([&] { NcclCommunicator(id, world.size(), world.rank(), kGpu, 0.3, nullptr); });
    EXPECT_EQ(line, fmt::format("worker {} waited 0.3 s (timeout_s) for the other {} to join the NCCL communicator",
                                world.rank(), world.size() == 2 ? "worker" : "workers"));
    EXPECT_EQ(what_of([&] {
                NcclCommunicator(id, world.size(), world.rank(), kGpu, kTimeout_s,
                                 [] { throw Error("a rank is lost"); });
              }),
              "a rank is lost");
  }
  world.barrier();
}

TEST_F(NcclSums, OthersThatSumSomethingElseAreAnError) {
  const auto nccl = join(world);
  OnDevice data(cuda, random_of(world.rank(), is_last ? 60 : 50));
  NcclAllReduce sum = nccl->start(data.span(), compute.record(), InBucket::last);
  const std::string line = what_of([&] { finish([&] { return sum.step(); }); });
  EXPECT_NE(line.find("invalid usage"), std::string::npos) << line;
  EXPECT_NE(line.find(" of 50 "), std::string::npos) << line;
  world.barrier();
}

// --- The emulation itself: the mistakes that it must show.

struct RawNccl : NcclSums {
  ncclComm_t comm = nullptr;
  void SetUp() override {
    const std::string name = world.broadcast(world.rank() == 0 ? NcclCommunicator::make_id() : "", 0);
    ncclUniqueId id;
    std::memcpy(id.internal, name.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, world.size(), id, world.rank(), &config), ncclInProgress);
    EXPECT_EQ(ncclAllReduce(&comm, &comm, 1, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage) << "not there yet";
    wait();
  }
  void TearDown() override { world.barrier(); }
  void wait() const {
    finish([this] {
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      return state == ncclSuccess;
    });
  }
  ncclResult_t sum(std::span<float> data, const CudaStream& stream) const {
    return ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm, stream.get());
  }
};

TEST_F(RawNccl, SumsThatDoNotWaitForWhatIsSummedAreWrong) {
  const CudaStream nccl_stream(0);
  OnDevice data(cuda, Floats(100, 1.0F));
  EXPECT_EQ(sum(data.span(), nccl_stream), ncclInProgress);
  wait();
  nccl_stream.synchronize();
  EXPECT_TRUE(std::isnan(data.span()[0])) << "summed before it was computed";
  cuda.synchronize();
  EXPECT_EQ(data.span()[0], 1.0F) << "and then overwritten";
}

TEST_F(RawNccl, EventsBehindCallsInProgressComeTooEarly) {
  OnDevice data(cuda, Floats(100, 1.0F));
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(sum(data.span(), cuda), ncclInProgress);
  ASSERT_EQ(cudaEventRecord(event, cuda.get()), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(data.span()[0], 1.0F);
  EXPECT_EQ(sum(data.span(), cuda), ncclInvalidUsage) << "one call after the other";
  wait();
  cuda.synchronize();
  EXPECT_EQ(data.span()[0], static_cast<float>(world.size()));
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(RawNccl, GroupsThatAreNotEndedAreToldOf) {
  OnDevice data(cuda, Floats(100, 1.0F));
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(sum(data.span(), cuda), ncclSuccess);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidUsage);
  cuda.synchronize();
  EXPECT_EQ(data.span()[0], 1.0F) << "nothing is summed before the end";
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  wait();
  cuda.synchronize();
  EXPECT_EQ(data.span()[0], static_cast<float>(world.size()));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "there is none";
}

TEST_F(RawNccl, AbortedCommunicatorsAreNone) {
  OnDevice data(cuda, Floats(100, 1.0F));
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  EXPECT_EQ(sum(data.span(), cuda), ncclInvalidArgument);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument);
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
