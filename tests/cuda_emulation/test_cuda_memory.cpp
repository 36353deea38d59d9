// Memory of emulated devices: what is allocated when, where, and what may be touched while the device still reads it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "cuda_emulation.hpp"
#include "cuda_runtime.h"
#include "hat/core/error.hpp"
#include "hat/device/cuda.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/kernels/operations.hpp"
#include "model/staged_exchange.hpp"
#include "model_support.hpp"

namespace hat::test {
namespace {

using cuda_emulation::memory_counters;

Device gpu(int index = 0) { return {.kind = DeviceKind::cuda, .index = index, .threads = 1}; }

// --- More than one device in a process

TEST(CudaDevices, StreamsAndEventsAreOfTheirOwnWhicheverIsCurrent) {
  cuda_emulation::set_devices(2);
  const Operations& ops = operations(DeviceKind::cuda);
  const Stream first(gpu(0));
  const Stream second(gpu(1));  // the current one from here on
  constexpr int64_t kSide = 8;
  for (const Stream* stream : {&first, &second, &first}) {
    const Stream& other = stream == &first ? second : first;
    DeviceBuffer<float> a(stream->device(), kSide * kSide);
    DeviceBuffer<float> c(stream->device(), kSide * kSide);
    DeviceBuffer<float> elsewhere(other.device(), 1);  // makes the other device the current one
    ops.fill(*stream, a.size(), 2.0F, a.data());
    const Event filled = stream->record();
    other.wait_for(filled);
    DeviceBuffer<float> once_more(other.device(), 1);
    ops.gemm(*stream, Element::bf16, Transpose::no, Transpose::yes, kSide, kSide, kSide, 1.0F,
             static_cast<const float*>(a.data()), kSide, static_cast<const float*>(a.data()), kSide, 0.0F, c.data(),
             kSide);
    const Event multiplied = stream->record();
    multiplied.wait();
    other.synchronize();
    EXPECT_EQ(c.span().back(), 4.0F * kSide);
  }
  cuda_emulation::set_devices(1);
}

// A thread begins with device 0, and so does a process.
// At their first launch, beside a sum of NCCL, could be too late.
TEST(CudaDevices, KernelsAreLoadedWithTheContext) {
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  ASSERT_NE(loading, nullptr);
  EXPECT_STREQ(loading, "EAGER");
}

TEST(CudaDevices, WhoHasAnotherOneLeavesTheFirstAlone) {
  cuda_emulation::set_devices(2);
  cuda_emulation::take_used_devices();
  std::thread([] {
    const auto begins_anew = [] { ASSERT_EQ(cudaSetDevice(0), cudaSuccess); };
    PinnedBuffer<float> locked(gpu(1), 10);
    begins_anew();
    std::vector<float> memory(10);
    const PinnedRange range(gpu(1), std::as_writable_bytes(std::span(memory)));
    begins_anew();
    DeviceBuffer<float> buffer(gpu(1), 10);
    begins_anew();
    const Stream stream(gpu(1));
    begins_anew();
    operations(DeviceKind::cuda).reserve(stream, 1 << 20);
    begins_anew();
    const Event event = stream.record();
    begins_anew();
    operations(DeviceKind::cuda).fill(stream, 10, 1.0F, buffer.data());
    begins_anew();
    buffer = {};
    stream.synchronize();
  }).join();
  EXPECT_EQ(cuda_emulation::take_used_devices(), std::set<int>{1});
  cuda_emulation::set_devices(1);
}

TEST(CudaDevices, AFullOneSaysHowMuchWasWanted) {
  try {
    const DeviceBuffer<float> all(gpu(), int64_t{3} << 30);
    FAIL() << "12 GiB of 8";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "out of memory: CUDA device 0 cannot allocate 12884901888 bytes (device = cpu computes without it)");
  }
}

TEST(CudaDevices, CopiesKnowMemoryThatIsPageLocked) {
  const Stream stream(gpu());
  PinnedBuffer<float> locked(gpu(), 100);
  std::vector<float> pageable(100);
  std::vector<float> registered(100);
  DeviceBuffer<float> on_device(gpu(), 100);
  const auto copied_from = [&](float* host) {
    const int64_t before = memory_counters().page_locked_bytes;
    const int64_t pageable_before = memory_counters().pageable_bytes;
    copy_to_host(stream, on_device.data(), host, 50);
    copy_to_device(stream, static_cast<const float*>(host), on_device.data(), 50);
    EXPECT_EQ(memory_counters().page_locked_bytes + memory_counters().pageable_bytes, before + pageable_before + 400);
    return memory_counters().page_locked_bytes - before;
  };
  EXPECT_EQ(copied_from(locked.data() + 50), 400);
  EXPECT_EQ(copied_from(pageable.data()), 0);
  {
    const PinnedRange range(gpu(), std::as_writable_bytes(std::span(registered)));
    EXPECT_EQ(copied_from(registered.data() + 50), 400);
  }
  EXPECT_EQ(copied_from(registered.data()), 0) << "no longer";
  stream.synchronize();
}

// --- What a model allocates

struct GrowthCount : PassObserver {
  int64_t asked = 0;
  void before_growth() override {
    ++asked;
    at_allocations = memory_counters().allocations;
  }
  int64_t at_allocations = 0;
};

class ModelMemory : public testing::TestWithParam<std::pair<ModelFamily, Element>> {
 protected:
  static ModelConfig config() {
    ModelConfig result = GetParam().first == ModelFamily::gpt2 ? small_gpt2() : small_llama();
    result.max_length = 5000;  // longer than the tables of angles that are made at once
    return result;
  }
  static ComputeOptions options() {
    return {.arithmetic = GetParam().second, .chunk_tokens = 16, .device = DeviceKind::cuda};
  }
  void compute(Transformer& model, const std::vector<int32_t>& lengths, PassObserver& observer) {
    const PackedBatch batch = random_batch(lengths, 61, 1);
    const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
    BlockValues gradients(model.layout());
    model.gradient(batch, parameters.parameters(), gradients.gradients(), observer);
    stream_.synchronize();
  }
  Stream stream_{gpu()};
};

TEST_P(ModelMemory, OfWhatIsReservedNothingIsAllocatedLater) {
  Transformer model(config(), options(), stream_);
  model.reserve(std::vector<BatchSize>{{.tokens = 40, .longest = 40}});
  const int64_t before = memory_counters().allocations;
  GrowthCount growth;
  for (const std::vector<int32_t>& lengths :
       {std::vector<int32_t>{1}, {10, 3}, {5, 5, 5, 5, 5, 5, 5, 5}, {40}, {1, 38, 1}, {17}}) {
    compute(model, lengths, growth);
  }
  EXPECT_EQ(memory_counters().allocations, before);
  EXPECT_EQ(growth.asked, 0);
  compute(model, {41}, growth);
  EXPECT_EQ(growth.asked, 1);
  EXPECT_EQ(growth.at_allocations, before) << "asked before anything grew";
  EXPECT_GT(memory_counters().allocations, before);
  compute(model, {41}, growth);
  EXPECT_EQ(growth.asked, 1);
}

// The plan's figure is what the driver sees.
TEST_P(ModelMemory, IsWhatWasCounted) {
  const std::vector<BatchSize> sizes{{.tokens = 60, .longest = 25},
                                     BatchSize::of(GangRange{.bounds = {0, 33, 57, 70}, .member = 0}),
                                     BatchSize::of(GangRange{.bounds = {0, 33, 57, 70}, .member = 2})};
  ComputeOptions counted = options();
  counted.operations = &operations(DeviceKind::cuda);
  const Transformer::ReservedBytes bytes = Transformer(config(), counted, Stream(Device{})).reserved_bytes(sizes);
  const int64_t before = cuda::free_bytes(0);
  Transformer model(config(), options(), stream_);
  model.reserve(sizes);
  EXPECT_EQ(before - cuda::free_bytes(0), bytes.buffers + bytes.scratch);
}

INSTANTIATE_TEST_SUITE_P(Families, ModelMemory,
                         testing::Values(std::pair{ModelFamily::llama, Element::fp32},
                                         std::pair{ModelFamily::llama, Element::bf16},
                                         std::pair{ModelFamily::gpt2, Element::bf16}));

// Tables of angles that were filled before more memory was reserved are filled again.
TEST(ModelMemory, ReservingInBetweenChangesNoResult) {
  const ModelConfig config = small_llama();
  const Stream stream(gpu());
  const PackedBatch batch = random_batch({30}, 61, 1);
  PassObserver nobody;
  Transformer model(config, {.device = DeviceKind::cuda}, stream);
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  const LossSum first = model.loss(batch, parameters.parameters(), nobody);
  model.reserve(std::vector<BatchSize>{{.tokens = 200, .longest = 5000}});
  const LossSum second = model.loss(batch, parameters.parameters(), nobody);
  EXPECT_EQ(first.nats, second.nats);
}

// --- What others may overwrite

/// An exchange whose memory is somebody else's as soon as the layer is released.
struct Overwritten : RangeExchange {
  std::vector<float> earlier = std::vector<float>(30, 3.0F);
  std::vector<float> later = std::vector<float>(30, 5.0F);
  void send_keys_values(int64_t, ConstValues) override {}
  ConstValues wait_earlier(int64_t, int64_t) override { return earlier.data(); }
  void send_gradients(int64_t, int64_t, const float*) override {}
  const float* wait_later(int64_t, int64_t) override { return later.data(); }
  void release(int64_t) override {
    std::ranges::fill(earlier, NAN);
    std::ranges::fill(later, NAN);
  }
};

TEST(StagedExchange, ReleasesWhenTheDeviceHasItAll) {
  const Stream stream(gpu());
  StagedExchange staged(stream, Element::fp32);
  Overwritten host;
  PassObserver observer;
  staged.begin(host, observer, GangRange{.bounds = {0, 10, 20, 30}, .member = 1}, /*width=*/3);
  const ConstValues earlier = staged.wait_earlier(0, 0);
  const float* later = staged.wait_later(0, 2);
  staged.release(0);
  stream.synchronize();
  for (int64_t i = 0; i < 30; ++i) {
    ASSERT_EQ(earlier.fp32()[i], 3.0F) << i;
    ASSERT_EQ(later[i], 5.0F) << i;
  }
}

}  // namespace
}  // namespace hat::test
