#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <hat_ptx.cuh>
#include <numeric>
#include <vector>

#include "hat/core/random.hpp"

// The emulation itself: what a GPU does, and the mistakes that it must show.
namespace hat {
namespace {

using cuda_emulation::Order;

constexpr Order kOrders[] = {Order::ascending, Order::descending, Order::shuffled};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int blocks, int threads, size_t shared, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned int>(blocks));
  config.blockDim = dim3(static_cast<unsigned int>(threads));
  config.dynamicSmemBytes = shared;
  ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

/// y[i] = x[last - i] inside each block, through shared memory.
template <bool kBarrier>
void reverse(const int* x, int* y) {
  int* shared = cuda::dynamic_shared<int>();
  const int i = static_cast<int>(threadIdx.x);
  const int n = static_cast<int>(blockDim.x);
  shared[i] = x[static_cast<int>(blockIdx.x) * n + i];
  if constexpr (kBarrier) __syncthreads();
  y[static_cast<int>(blockIdx.x) * n + i] = shared[n - 1 - i];
}

/// Whether all orders of threads give the right result.
template <bool kBarrier>
bool reverses() {
  constexpr int kThreads = 96;
  constexpr int kBlocks = 3;
  std::vector<int> x(kThreads * kBlocks);
  std::iota(x.begin(), x.end(), 0);
  bool right = true;
  for (const Order order : kOrders) {
    cuda_emulation::set_order(order);
    std::vector<int> y(x.size(), -1);
    launch(reverse<kBarrier>, kBlocks, kThreads, kThreads * sizeof(int), x.data(), y.data());
    for (int i = 0; i < kThreads * kBlocks; ++i) {
      const int expected = i / kThreads * kThreads + kThreads - 1 - i % kThreads;
      right = right && y[static_cast<size_t>(i)] == expected;
    }
  }
  return right;
}

TEST(CudaEmulation, MissingBarrierGivesWrongResults) {
  EXPECT_TRUE(reverses<true>());
  EXPECT_FALSE(reverses<false>());
}

void read_at(const float* x, int i, float* y) { y[threadIdx.x] = x[i]; }
void read_shared_at(int i, float* y) { y[threadIdx.x] = cuda::dynamic_shared<float>()[i]; }

TEST(CudaEmulationDeathTest, ReadsOutsideAreCaught) {
  std::vector<float> y(1);
  float* memory = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 10 * sizeof(float)), cudaSuccess);
  launch(read_at, 1, 1, 0, memory, 9, y.data());
  EXPECT_TRUE(std::isnan(y[0])) << "device memory begins as NaN";
  launch(read_shared_at, 1, 1, 10 * sizeof(float), 9, y.data());
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_DEATH(launch(read_at, 1, 1, 0, memory, 10, y.data()), "AddressSanitizer: heap-buffer-overflow");
  EXPECT_DEATH(launch(read_shared_at, 1, 1, 10 * sizeof(float), 10, y.data()),
               "AddressSanitizer: heap-buffer-overflow");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_DEATH(launch(read_at, 1, 1, 0, memory, 0, y.data()), "AddressSanitizer: heap-use-after-free");
}

void half_waits() {
  if (threadIdx.x % 2 == 0) __syncwarp();
}
void half_at_the_barrier_half_in_the_warp() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}
void half_ends() {
  if (threadIdx.x >= 16) return;
  __syncthreads();  // of those that are left
}

TEST(CudaEmulation, ThreadsThatWaitForEverAreTold) {
  for (const Order order : kOrders) {
    cuda_emulation::set_order(order);
    EXPECT_THROW(launch(half_waits, 1, 32, 0), std::logic_error);
    EXPECT_THROW(launch(half_at_the_barrier_half_in_the_warp, 1, 32, 0), std::logic_error);
    EXPECT_NO_THROW(launch(half_ends, 2, 64, 0));
  }
}

void warp_functions(int* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int* at = y + static_cast<int>(threadIdx.x) * 6;
  at[0] = __shfl_sync(0xffffffffU, 100 + lane, 5);
  at[1] = __shfl_xor_sync(0xffffffffU, lane, 16);
  at[2] = __shfl_down_sync(0xffffffffU, lane, 3);
  at[3] = __shfl_up_sync(0xffffffffU, lane, 1, 8);
  at[4] = static_cast<int>(__ballot_sync(0xffffffffU, lane % 3 == 0 ? 1 : 0));
  at[5] = __syncthreads_count(lane == 0 ? 1 : 0);
}

TEST(CudaEmulation, WarpFunctions) {
  constexpr int kThreads = 96;
  for (const Order order : kOrders) {
    cuda_emulation::set_order(order);
    std::vector<int> y(kThreads * 6);
    launch(warp_functions, 1, kThreads, 0, y.data());
    unsigned int votes = 0;
    for (int lane = 0; lane < 32; lane += 3) votes |= 1U << lane;
    for (int i = 0; i < kThreads; ++i) {
      const int lane = i % 32;
      const int* at = y.data() + static_cast<ptrdiff_t>(i) * 6;
      EXPECT_EQ(at[0], 105);
      EXPECT_EQ(at[1], lane ^ 16);
      EXPECT_EQ(at[2], lane + 3 < 32 ? lane + 3 : lane);
      EXPECT_EQ(at[3], lane % 8 == 0 ? lane : lane - 1);
      EXPECT_EQ(static_cast<unsigned int>(at[4]), votes);
      EXPECT_EQ(at[5], 3);
    }
  }
}

/// c (16, 8) = a (16, 16) b (16, 8), b given as (8, 16): ldmatrix and mma.sync, and copies that are waited for.
void product(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, bool waits) {
  auto* shared = cuda::dynamic_shared<__nv_bfloat16>();  // a (16, 16), then b (8, 16)
  const int lane = static_cast<int>(threadIdx.x);
  cuda::copy_async_16(shared + 8 * lane, a + 8 * lane, true);
  if (lane < 16) cuda::copy_async_16(shared + 256 + 8 * lane, b + 8 * lane, true);
  cuda::commit_copies();
  if (waits) cuda::wait_copies<0>();
  __syncthreads();
  uint32_t of_a[4];
  uint32_t of_b[4];
  // Matrices of a: rows 0 and 8 on, columns 0 and 8 on, in the order of the fragment.
  cuda::load_matrices_4(of_a, shared + (lane % 16) * 16 + lane / 16 * 8);
  cuda::load_matrices_4(of_b, shared + 256 + (lane % 8) * 16 + lane / 8 % 2 * 8);
  float d[4] = {};
  cuda::multiply_add_bf16(d, of_a, {of_b[0], of_b[1]});
  for (int i = 0; i < 4; ++i) c[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = d[i];
  if (!waits) cuda::wait_copies<0>();
}

TEST(CudaEmulation, TensorCoresAndCopies) {
  std::vector<__nv_bfloat16> a(256);
  std::vector<__nv_bfloat16> b(128);
  for (size_t i = 0; i < a.size(); ++i) a[i] = __float2bfloat16(static_cast<float>(random_normal(1, 1, i)));
  for (size_t i = 0; i < b.size(); ++i) b[i] = __float2bfloat16(static_cast<float>(random_normal(1, 2, i)));
  const auto run = [&](bool waits) {
    double worst = 0;
    for (const Order order : kOrders) {
      cuda_emulation::set_order(order);
      std::vector<float> c(128);
      launch(product, 1, 32, 384 * sizeof(__nv_bfloat16), a.data(), b.data(), c.data(), waits);
      for (size_t m = 0; m < 16; ++m) {
        for (size_t n = 0; n < 8; ++n) {
          double sum = 0;
          for (size_t k = 0; k < 16; ++k) {
            sum += static_cast<double>(__bfloat162float(a[m * 16 + k])) *
                   static_cast<double>(__bfloat162float(b[n * 16 + k]));
          }
          const double difference = std::abs(sum - static_cast<double>(c[m * 8 + n]));
          worst = difference <= worst ? worst : difference;  // NaN counts
        }
      }
    }
    return worst;
  };
  EXPECT_LT(run(true), 1e-5);
  EXPECT_FALSE(run(false) < 1e-5) << "what was not waited for is not there";
}

/// Every thread reads what its neighbour has in shared memory, which then is overwritten by the neighbour's copy; with
/// a barrier between the two or without.
template <bool kBarrier>
void read_then_copy(const float* x, float* y) {
  auto* shared = cuda::dynamic_shared<float>();
  const int i = static_cast<int>(threadIdx.x);
  const int n = static_cast<int>(blockDim.x);
  for (int e = 0; e < 4; ++e) shared[4 * i + e] = -1;
  __syncthreads();
  y[i] = shared[4 * ((i + 1) % n)];
  if constexpr (kBarrier) __syncthreads();
  cuda::copy_async_16(shared + 4 * i, x + 4 * i, true);
  cuda::commit_copies();
  cuda::wait_copies<0>();
}

template <bool kBarrier>
bool reads_what_was_there() {
  constexpr int kThreads = 64;
  const std::vector<float> x(4 * kThreads, 5.0F);
  bool right = true;
  for (const Order order : kOrders) {
    cuda_emulation::set_order(order);
    std::vector<float> y(kThreads);
    launch(read_then_copy<kBarrier>, 1, kThreads, 4 * kThreads * sizeof(float), x.data(), y.data());
    for (const float value : y) right = right && value == -1;
  }
  return right;
}

TEST(CudaEmulation, CopiesThatComeTooEarlyShow) {
  EXPECT_TRUE(reads_what_was_there<true>());
  EXPECT_FALSE(reads_what_was_there<false>());
}

void add_one(int* x) { atomicAdd(x, 1); }

TEST(CudaEmulation, StreamsRunWhenSomebodyWaits) {
  int value = 0;
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(32);
  config.stream = first;
  ASSERT_EQ(cudaLaunchKernelEx(&config, add_one, &value), cudaSuccess);
  EXPECT_EQ(value, 0);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaLaunchKernelEx(&config, add_one, &value), cudaSuccess);
  int copy = -1;
  ASSERT_EQ(cudaStreamWaitEvent(second, event), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&copy, &value, sizeof copy, cudaMemcpyDefault, second), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(copy, 32) << "the second stream waits for the first up to the event, and no further";
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  EXPECT_EQ(value, 64);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
}

TEST(CudaEmulation, LaunchesBeyondTheLimitsAreRefused) {
  int value = 0;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(1025);
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_one, &value), cudaErrorInvalidConfiguration);
  config.blockDim = dim3(32);
  config.gridDim = dim3(1, 65'536);
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_one, &value), cudaErrorInvalidConfiguration);
  config.gridDim = dim3(1);
  config.dynamicSmemBytes = 60'000;
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_one, &value), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(add_one, cudaFuncAttributeMaxDynamicSharedMemorySize, 60'000), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config, add_one, &value), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(add_one, cudaFuncAttributeMaxDynamicSharedMemorySize, 300'000), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace hat
