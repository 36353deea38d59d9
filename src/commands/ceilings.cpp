#include "hat/commands/ceilings.hpp"

#include <fmt/format.h>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "hat/core/bfloat16.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/kernels/operations.hpp"

namespace hat {

namespace {

// The widest vector register that the compiler may use here.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kAccumulators = 16;  // of 32 registers; hides a latency of 4 cycles on 2 units with room to spare
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kAccumulators = 12;  // of 16 registers
#else
constexpr int kVectorBytes = 16;
constexpr int kAccumulators = 12;
#endif
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(float));
typedef float Vector __attribute__((vector_size(kVectorBytes)));

constexpr int kRuns = 5;
constexpr double kRunSeconds = 0.06;

/// Seconds of the fastest of some runs of `work` on `cores` threads at once.
double best_seconds(int cores, const std::function<void(int thread)>& work) {
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    std::latch ready(cores);
    std::vector<double> start_s(static_cast<size_t>(cores));
    std::vector<double> end_s(static_cast<size_t>(cores));
    {
      std::vector<std::jthread> threads;
      threads.reserve(static_cast<size_t>(cores));
      for (int thread = 0; thread < cores; ++thread) {
        threads.emplace_back([&, thread] {
          ready.arrive_and_wait();
          start_s[static_cast<size_t>(thread)] = now_s();
          work(thread);
          end_s[static_cast<size_t>(thread)] = now_s();
        });
      }
    }
    best = std::min(best,
                    *std::max_element(end_s.begin(), end_s.end()) - *std::min_element(start_s.begin(), start_s.end()));
  }
  return best;
}

using Accumulators = std::array<Vector, kAccumulators>;

/// Each starts elsewhere, so that no two are the same to the compiler.
Accumulators first_values() {
  Accumulators x;
  for (int i = 0; i < kAccumulators; ++i) x[static_cast<size_t>(i)] = Vector{} + static_cast<float>(i);
  return x;
}

double sum_of_lanes(const Accumulators& x) {
  double sum = 0.0;
  for (const Vector& accumulator : x) {
    for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(accumulator[lane]);
  }
  return sum;
}

/// x = one x + one in every accumulator, over and over. With one = 1 (which the compiler must not know) x counts the
/// rounds exactly, so the sum of all lanes proves that none was left out or merged with another.
double fp32_rounds(int64_t rounds, float one) {
  const Vector ones = Vector{} + one;
  Accumulators x = first_values();
  for (int64_t round = 0; round < rounds; ++round) {
    for (Vector& accumulator : x) accumulator = accumulator * ones + ones;
  }
  return sum_of_lanes(x);
}

/// x = x + one one + one one in every accumulator: counts the rounds twice.
#if defined(__AVX512BF16__)
constexpr bool kHasBf16 = true;
double bf16_rounds(int64_t rounds, float one) {
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(static_cast<short>(to_bfloat16(one).bits)));
  Accumulators x = first_values();
  for (int64_t round = 0; round < rounds; ++round) {
    for (Vector& accumulator : x) accumulator = _mm512_dpbf16_ps(accumulator, ones, ones);
  }
  return sum_of_lanes(x);
}
#else
constexpr bool kHasBf16 = false;
double bf16_rounds(int64_t, float) { return 0.0; }
#endif

/// A loop whose result, less that of no rounds, is the number of its multiply-adds when it is given 1.
struct CountingLoop {
  double (*run)(int64_t rounds, float one);
  double multiply_adds_per_round;
};

constexpr int64_t kRounds = int64_t{1} << 20;  // float counts exactly up to 2^24

void repeat(const CountingLoop& loop, int64_t repeats) {
  volatile float one = 1.0F;
  const double expected = sum_of_lanes(first_values()) + static_cast<double>(kRounds) * loop.multiply_adds_per_round;
  for (int64_t i = 0; i < repeats; ++i) {
    const double found = loop.run(kRounds, one);
    if (found != expected) throw Error(fmt::format("the multiply-add loop counted {}, not {}", found, expected));
  }
}

/// Copy and triad on arrays far larger than the caches.
void measure_memory(int cores, Ceilings& ceilings) {
  constexpr size_t kElements = size_t{48} << 20;  // 192 MiB an array
  std::vector<float> x(kElements, 1.0F);
  std::vector<float> y(kElements, 2.0F);
  std::vector<float> z(kElements, 0.0F);
  const size_t share = kElements / static_cast<size_t>(cores);
  const auto stretch = [&](int thread, const auto& work) {
    const size_t begin = share * static_cast<size_t>(thread);
    work(begin, thread + 1 == cores ? kElements : begin + share);
  };
  const double copy_s = best_seconds(cores, [&](int thread) {
    stretch(thread, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) z[i] = x[i];
    });
  });
  if (std::any_of(z.begin(), z.end(), [](float value) { return value != 1.0F; })) throw Error("the copy loop is wrong");
  const double triad_s = best_seconds(cores, [&](int thread) {
    stretch(thread, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) z[i] = x[i] + 3.0F * y[i];
    });
  });
  if (std::any_of(z.begin(), z.end(), [](float value) { return value != 7.0F; }))
    throw Error("the triad loop is wrong");
  ceilings.copy_gbytes_s = 2.0 * sizeof(float) * kElements / copy_s / 1e9;
  ceilings.triad_gbytes_s = 3.0 * sizeof(float) * kElements / triad_s / 1e9;
}

}  // namespace

std::optional<double> multiply_add_gflops(Element arithmetic, int cores) {
  if (arithmetic == Element::bf16 && !kHasBf16) return std::nullopt;
  const CountingLoop loop = arithmetic == Element::fp32 ? CountingLoop{fp32_rounds, kAccumulators * kLanes}
                                                        : CountingLoop{bf16_rounds, 2.0 * kAccumulators * kLanes};
  const double trial_s = best_seconds(1, [&](int) { repeat(loop, 1); });
  const auto repeats = std::max<int64_t>(1, static_cast<int64_t>(kRunSeconds / trial_s));
  const double seconds = best_seconds(cores, [&](int) { repeat(loop, repeats); });
  return 2.0 * loop.multiply_adds_per_round * static_cast<double>(kRounds * repeats) * cores / seconds / 1e9;
}

double product_gflops(Element arithmetic, int threads) {
  constexpr int64_t kSize = 1024;
  const Stream stream{Device{.kind = DeviceKind::cpu, .index = 0, .threads = threads}};
  const Operations& kernels = operations(DeviceKind::cpu);
  DeviceBuffer<float> a(stream.device(), kSize * kSize);
  DeviceBuffer<float> b(stream.device(), kSize * kSize);
  DeviceBuffer<float> c(stream.device(), kSize * kSize);
  kernels.fill(stream, a.size(), 0.5F, a.data());
  kernels.fill(stream, b.size(), 2.0F, b.data());
  double best = 1e300;
  for (int run = 0; run < kRuns + 1; ++run) {  // the first one warms up
    const double start_s = now_s();
    kernels.gemm(stream, arithmetic, Transpose::no, Transpose::no, kSize, kSize, kSize, 1.0F, a.data(), kSize, b.data(),
                 kSize, 0.0F, c.data(), kSize);
    stream.synchronize();
    best = std::min(best, now_s() - start_s);
  }
  std::vector<float> corner(1);
  copy_to_host(stream, c.data() + c.size() - 1, corner.data(), 1);
  stream.synchronize();
  if (std::abs(corner[0] - static_cast<float>(kSize)) > 1e-3F) throw Error("the matrix product is wrong");
  return 2.0 * kSize * kSize * kSize / best / 1e9;
}

Ceilings measure_ceilings(int cores) {
  Ceilings ceilings;
  ceilings.cores = cores;
  ceilings.fma_one_gflops = multiply_add_gflops(Element::fp32, 1).value();
  ceilings.fma_all_gflops = multiply_add_gflops(Element::fp32, cores).value();
  ceilings.bf16_one_gflops = multiply_add_gflops(Element::bf16, 1);
  ceilings.bf16_all_gflops = multiply_add_gflops(Element::bf16, cores);
  measure_memory(cores, ceilings);
  ceilings.product_one_gflops = product_gflops(Element::fp32, 1);
  ceilings.product_all_gflops = product_gflops(Element::fp32, cores);
  ceilings.bf16_product_one_gflops = product_gflops(Element::bf16, 1);
  ceilings.bf16_product_all_gflops = product_gflops(Element::bf16, cores);
  return ceilings;
}

}  // namespace hat
