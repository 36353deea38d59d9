#include <cublasLt.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda_kernels.hpp"
#include "hat/core/error.hpp"
#include "hat/core/random.hpp"
#include "hat/device/cuda_stream.hpp"
#include "hat/device/device_buffer.hpp"

// Results of products: test_kernels.cpp. Here: how the library is asked for them.
namespace hat {
namespace {

constexpr int64_t kSize = 24;
const Device kDevice{.kind = DeviceKind::cuda};

struct Matrices {
  explicit Matrices(const Stream& stream) {
    const std::vector<float> ones(static_cast<size_t>(kSize * kSize), 1.0F);
    for (DeviceBuffer<float>* matrix : {&a, &b, &c}) {
      *matrix = DeviceBuffer<float>(stream.device(), kSize * kSize);
      copy_to_device(stream, ones.data(), matrix->data(), matrix->size());
    }
    stream.synchronize();
  }
  DeviceBuffer<float> a, b, c;
};

void multiply(const Stream& stream, Matrices& at, Element arithmetic, int64_t k, float beta = 0, int64_t first = 0) {
  cuda::gemm(stream, arithmetic, Transpose::no, Transpose::yes, 8, 8, k, 1.0F, at.a.data() + first, kSize,
             at.b.data() + first, kSize, beta, at.c.data() + first, kSize);
}

float first_of(const Stream& stream, const DeviceBuffer<float>& matrix) {
  float value = 0;
  copy_to_host(stream, matrix.data(), &value, 1);
  stream.synchronize();
  return value;
}

TEST(CudaProducts, ChoosesOnceForEachShape) {
  const Stream stream(kDevice);
  Matrices at(stream);
  const int64_t before = cuda_emulation::product_counters().chosen;
  for (int i = 0; i < 3; ++i) multiply(stream, at, Element::fp32, 16);
  EXPECT_EQ(cuda_emulation::product_counters().chosen - before, 1);
  multiply(stream, at, Element::fp32, 17);
  multiply(stream, at, Element::bf16, 16);
  multiply(stream, at, Element::bf16, 16);
  EXPECT_EQ(cuda_emulation::product_counters().chosen - before, 3);
  multiply(stream, at, Element::fp32, 16, 0, /*first=*/1);  // less aligned
  EXPECT_EQ(cuda_emulation::product_counters().chosen - before, 4);
  stream.synchronize();
}

TEST(CudaProducts, WaitsForTheStream) {
  const Stream stream(kDevice);
  Matrices at(stream);
  multiply(stream, at, Element::fp32, 16);
  EXPECT_EQ(at.c.data()[0], 1.0F);
  stream.synchronize();
  EXPECT_EQ(at.c.data()[0], 16.0F);
}

TEST(CudaProducts, NothingToMultiplyAddsNothing) {
  const Stream stream(kDevice);
  Matrices at(stream);
  multiply(stream, at, Element::bf16, 0, /*beta=*/1);
  EXPECT_EQ(first_of(stream, at.c), 1.0F);
}

TEST(CudaProducts, AsksForTf32OnlyWhereTheDeviceMay) {
  const auto asked = [] { return cuda_emulation::product_counters().rounded_to_tf32; };
  const int64_t before = asked();
  {
    const Stream stream(kDevice);
    Matrices at(stream);
    multiply(stream, at, Element::fp32, 16);
    stream.synchronize();
  }
  EXPECT_EQ(asked(), before);
  const Stream stream(Device{.kind = DeviceKind::cuda, .tf32 = true});
  Matrices at(stream);
  multiply(stream, at, Element::fp32, 16);
  EXPECT_EQ(asked(), before + 1);
  multiply(stream, at, Element::bf16, 16);  // nothing to round
  EXPECT_EQ(asked(), before + 1);
  EXPECT_EQ(first_of(stream, at.c), 16.0F);
}

// Who rounds does not matter.
TEST(CudaProducts, OfOperandsRoundedBeforeAreTheSame) {
  constexpr int64_t kRows = 9;
  const Stream stream(kDevice);
  DeviceBuffer<float> x(kDevice, kRows * kSize);
  DeviceBuffer<float> weight(kDevice, kSize * kSize);
  for (int64_t i = 0; i < x.size(); ++i)
    x.data()[i] = static_cast<float>(random_normal(1, 0, static_cast<uint64_t>(i)));
  for (int64_t i = 0; i < weight.size(); ++i) {
    weight.data()[i] = static_cast<float>(random_normal(1, 1, static_cast<uint64_t>(i)));
  }
  DeviceBuffer<bfloat16> rounded(kDevice, weight.size());
  cuda::round(stream, weight.size(), weight.data(), rounded.data());
  const auto product = [&](Transpose transpose, ConstValues with) {
    DeviceBuffer<float> y(kDevice, kRows * kSize);
    cuda::gemm(stream, Element::bf16, Transpose::no, transpose, kRows, kSize, kSize, 1.0F, x.data(), kSize, with, kSize,
               0.0F, y.data(), kSize);
    stream.synchronize();
    return std::vector<float>(y.span().begin(), y.span().end());
  };
  for (const Transpose transpose : {Transpose::no, Transpose::yes}) {
    EXPECT_EQ(product(transpose, weight.data()), product(transpose, rounded.data()));
  }
}

TEST(CudaDevices, EventsOrderStreams) {
  const Stream first(kDevice);
  const Stream second(kDevice, "pull");
  Matrices at(first);
  multiply(first, at, Element::fp32, 16);
  const Event done = first.record();
  second.wait_for(done);
  float value = 0;
  copy_to_host(second, at.c.data(), &value, 1);
  EXPECT_FALSE(second.is_done());
  second.synchronize();
  EXPECT_EQ(value, 16.0F);
  EXPECT_TRUE(done.is_done());
}

TEST(CudaDevices, RefuseWhatDoesNotExist) {
  EXPECT_THROW(Stream(Device{.kind = DeviceKind::cuda, .index = 7}), Error);
  EXPECT_THROW((DeviceBuffer<float>(kDevice, int64_t{1} << 40)), Error);
}

}  // namespace
}  // namespace hat
