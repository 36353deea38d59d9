#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "../../kernels/cuda_operations.hpp"
#include "cuda_kernels.hpp"
#include "hat/core/bfloat16.hpp"
#include "hat/core/random.hpp"
#include "hat/device/cuda_stream.hpp"

namespace hat::check_device {

/// The device that is checked, and one stream on it.
class Gpu {
 public:
  Gpu(int index, uint64_t seed)
      : cuda_(index), stream_(Device{.kind = DeviceKind::cuda, .index = index, .threads = 1}, cuda_), seed_(seed) {}
  const Stream& stream() const { return stream_; }
  const CudaStream& cuda() const { return cuda_; }
  const Operations& operations() const { return cuda::cuda_operations(); }
  uint64_t seed() const { return seed_; }
  uint64_t next_stream() { return ++random_streams_; }

 private:
  CudaStream cuda_;
  Stream stream_;
  uint64_t seed_;
  uint64_t random_streams_ = 0;
};

/// What an array of the device begins with. `poison`: bytes of ones, NaN in every type: what a kernel does not write
/// stays one, and what it reads without having written it makes one.
enum class Start { random, poison };

/// An array on the device between two guards, and its start values on the host.
template <class T>
class Array {
 public:
  Array(Gpu& gpu, int64_t count, Start start, double amplitude = 1.0) : gpu_(&gpu), host_(static_cast<size_t>(count)) {
    if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, bfloat16>) {
      const uint64_t stream = gpu.next_stream();
      for (size_t i = 0; start == Start::random && i < host_.size(); ++i) {
        const double value = amplitude * (2.0 * random_uniform(gpu.seed(), stream, i) - 1.0);
        if constexpr (std::is_same_v<T, bfloat16>) {
          host_[i] = to_bfloat16(static_cast<float>(value));
        } else {
          host_[i] = static_cast<T>(value);
        }
      }
    }
    is_poison_ = start == Start::poison;
    allocate();
  }
  Array(Gpu& gpu, std::vector<T> values) : gpu_(&gpu), host_(std::move(values)) { allocate(); }
  ~Array() { static_cast<void>(cudaFree(memory_)); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  int64_t size() const { return static_cast<int64_t>(host_.size()); }
  T* data() { return reinterpret_cast<T*>(memory_ + kGuardBytes); }
  const std::vector<T>& start() const { return host_; }
  double start(int64_t i) const { return widen(host_[static_cast<size_t>(i)]); }

  /// To the start values again.
  void reset() {
    check(cudaMemsetAsync(memory_, 0xff, bytes() + 2 * kGuardBytes, gpu_->cuda().get()), "cudaMemset");
    if (is_poison_ || host_.empty()) return;
    check(cudaMemcpyAsync(data(), host_.data(), bytes(), cudaMemcpyHostToDevice, gpu_->cuda().get()), "cudaMemcpy");
  }

  /// What is there now, as numbers; NaN all over where a guard was overwritten.
  std::vector<double> read() const {
    std::vector<unsigned char> all(bytes() + 2 * kGuardBytes);
    check(cudaMemcpyAsync(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost, gpu_->cuda().get()), "cudaMemcpy");
    gpu_->cuda().synchronize();
    const auto is_guard = [](unsigned char byte) { return byte == 0xff; };
    const bool is_intact = std::all_of(all.begin(), all.begin() + kGuardBytes, is_guard) &&
                           std::all_of(all.end() - kGuardBytes, all.end(), is_guard);
    std::vector<double> values(host_.size(), std::nan(""));
    const auto* at = reinterpret_cast<const T*>(all.data() + kGuardBytes);
    for (size_t i = 0; is_intact && i < values.size(); ++i) values[i] = widen(at[i]);
    return values;
  }

 private:
  static constexpr int64_t kGuardBytes = 512;
  static double widen(T value) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      return static_cast<double>(to_float(value));
    } else {
      return static_cast<double>(value);
    }
  }
  size_t bytes() const { return host_.size() * sizeof(T); }
  void allocate() {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes() + 2 * kGuardBytes), "cudaMalloc");
    memory_ = static_cast<unsigned char*>(memory);
    reset();
    gpu_->cuda().synchronize();
  }

  Gpu* gpu_;
  std::vector<T> host_;
  bool is_poison_ = false;
  unsigned char* memory_ = nullptr;
};

template <class T>
using Shared = std::shared_ptr<Array<T>>;

template <class T = float>
Shared<T> random_array(Gpu& gpu, int64_t count, double amplitude = 1.0) {
  return std::make_shared<Array<T>>(gpu, count, Start::random, amplitude);
}
template <class T = float>
Shared<T> poisoned_array(Gpu& gpu, int64_t count) {
  return std::make_shared<Array<T>>(gpu, count, Start::poison);
}
inline Shared<int32_t> integers(Gpu& gpu, std::vector<int32_t> values) {
  return std::make_shared<Array<int32_t>>(gpu, std::move(values));
}

/// norm(actual - expected) / norm(expected); not a number where something is none.
inline double distance(const std::vector<double>& actual, const std::vector<double>& expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

/// A kernel at one size: how it is run, how far its results are from the definition in double, what it does.
struct Case {
  std::string name;
  double bytes = 0;  ///< that a call reads and writes at least; what it is measured by, if `flops` is 0
  double flops = 0;
  std::function<void()> reset;  ///< outputs are poison again, inputs that are changed in place as they were
  std::function<void()> run;
  /// Behind `reset` and `run`: the largest error of an output, in units of what is allowed. Empty: not compared at this
  /// size.
  std::function<double()> error;
};

/// Sizes of a model.
struct Sizes {
  int64_t T;  ///< tokens
  int64_t C;
  int64_t F;
  int64_t V;
  int64_t heads;
  int64_t kv_heads;
  int64_t D;
  std::vector<int32_t> documents;  ///< lengths, T together
  bool compared;                   ///< with the definition
};

inline constexpr double kFp32 = 2e-6;       ///< allowed where sums are fp32
inline constexpr double kUnit = 1.0 / 512;  ///< largest relative rounding error of bf16

std::vector<Case> norm_cases(Gpu& gpu, const Sizes& sizes);
std::vector<Case> elementwise_cases(Gpu& gpu, const Sizes& sizes);
std::vector<Case> activation_cases(Gpu& gpu, const Sizes& sizes);
std::vector<Case> token_cases(Gpu& gpu, const Sizes& sizes);
std::vector<Case> attention_cases(Gpu& gpu, const Sizes& sizes);
std::vector<Case> product_cases(Gpu& gpu, const Sizes& sizes);

}  // namespace hat::check_device
