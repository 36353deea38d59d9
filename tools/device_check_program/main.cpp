// Compares every kernel with its definition in double, and measures it against what the card can do. The program of
// tools/device_check; it needs the CUDA runtime and nothing else.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <random>

#include "gpu.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "nccl_check.hpp"
#include "training.hpp"

namespace hat::check_device {

namespace {

struct Options {
  int device = 0;
  uint64_t seed = 0;
  bool small = false;  ///< the smallest sizes only: for tools that make everything slow
  bool measure = true;
  bool compare = true;
  std::string train = {};  ///< instead of everything else: a model
  int nccl_gpus = 0;       ///< instead of everything else: sums over so many GPUs
  int break_case = -1;     ///< for the test of this program: writes into that case's output before it is compared
};

std::vector<Case> all_cases(Gpu& gpu, const Sizes& sizes) {
  std::vector<Case> cases;
  for (const auto& make :
       {norm_cases, elementwise_cases, activation_cases, token_cases, attention_cases, product_cases}) {
    for (Case& one : make(gpu, sizes)) cases.push_back(std::move(one));
  }
  return cases;
}

/// Odd sizes that fit no vector and no tile, and the head sizes of models.
std::vector<Sizes> compared_sizes(bool small) {
  const Sizes tiny{.T = 43,
                   .C = 37,
                   .F = 29,
                   .V = 61,
                   .heads = 2,
                   .kv_heads = 1,
                   .D = 6,
                   .documents = {1, 30, 12},
                   .compared = true};
  if (small) return {tiny};
  const Sizes gpt2{.T = 701,
                   .C = 768,
                   .F = 515,
                   .V = 5003,
                   .heads = 4,
                   .kv_heads = 4,
                   .D = 64,
                   .documents = {1, 129, 64, 500, 7},
                   .compared = true};
  const Sizes llama{.T = 550,
                    .C = 1030,
                    .F = 344,
                    .V = 2000,
                    .heads = 4,
                    .kv_heads = 2,
                    .D = 128,
                    .documents = {300, 250},
                    .compared = true};
  return {tiny, gpt2, llama};
}

/// Of GPT-2 and Llama, with so many tokens that no cache holds them.
std::vector<Sizes> measured_sizes() {
  std::vector<int32_t> documents(8, 2048);
  return {{.T = 16384,
           .C = 768,
           .F = 3072,
           .V = 50304,
           .heads = 12,
           .kv_heads = 12,
           .D = 64,
           .documents = documents,
           .compared = false},
          {.T = 16384,
           .C = 2048,
           .F = 5504,
           .V = 32000,
           .heads = 16,
           .kv_heads = 16,
           .D = 128,
           .documents = documents,
           .compared = false}};
}

int compare_all(Gpu& gpu, const Options& options) {
  int failures = 0;
  int compared = 0;
  std::printf("%-44s %12s\n", "kernel, against float64", "error / allowed");
  for (const Sizes& sizes : compared_sizes(options.small)) {
    for (const Case& one : all_cases(gpu, sizes)) {
      one.reset();
      one.run();
      if (compared == options.break_case) one.reset();
      const double error = one.error();
      const bool is_right = error <= 1.0;  // false for what is no number
      failures += is_right ? 0 : 1;
      ++compared;
      std::printf("%-36s T %-5lld %14.3f%s\n", one.name.c_str(), static_cast<long long>(sizes.T), error,
                  is_right ? "" : "  WRONG");
      std::fflush(stdout);
    }
  }
  std::printf("%d compared, %d wrong\n", compared, failures);
  return failures;
}

/// Seconds of a call, queued behind others of its kind so that launches cost nothing.
double seconds_of(Gpu& gpu, const std::function<void()>& run) {
  constexpr double kLong_s = 0.05;
  run();
  gpu.cuda().synchronize();
  for (int64_t calls = 1;; calls *= 4) {
    const double begin_s = now_s();
    for (int64_t i = 0; i < calls; ++i) run();
    gpu.cuda().synchronize();
    const double seconds = now_s() - begin_s;
    if (seconds > kLong_s) return seconds / static_cast<double>(calls);
  }
}

double copy_rate(Gpu& gpu) {
  const size_t bytes = size_t{1} << 30;
  void* from = nullptr;
  void* to = nullptr;
  check(cudaMalloc(&from, bytes), "cudaMalloc");
  check(cudaMalloc(&to, bytes), "cudaMalloc");
  check(cudaMemsetAsync(from, 1, bytes, gpu.cuda().get()), "cudaMemset");
  const double seconds = seconds_of(
      gpu, [&] { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu.cuda().get()), "cudaMemcpy"); });
  check(cudaFree(from), "cudaFree");
  check(cudaFree(to), "cudaFree");
  return 2.0 * static_cast<double>(bytes) / seconds;
}

std::optional<double> matrix_rate(Gpu& gpu) {
  const Sizes square{
      .T = 8192, .C = 8192, .F = 8192, .V = 0, .heads = 0, .kv_heads = 0, .D = 0, .documents = {}, .compared = false};
  const std::vector<Case> products = product_cases(gpu, square);
  if (products.empty()) return std::nullopt;
  return products.front().flops / seconds_of(gpu, products.front().run);
}

void measure_all(Gpu& gpu) {
  const double copy = copy_rate(gpu);
  const std::optional<double> matrix = matrix_rate(gpu);
  std::printf("\ncopy rate of this card (read and write)   %8.1f GB/s\n", copy / 1e9);
  if (matrix) {
    std::printf("matrix rate of this card (bf16, 8192^3)   %8.1f TFLOP/s\n", *matrix / 1e12);
  } else {
    std::printf("matrix rate: this build has no matrix products\n");
  }
  std::printf("\n%-32s %6s %12s %16s %10s\n", "kernel", "C", "time", "rate", "of ceiling");
  for (const Sizes& sizes : measured_sizes()) {
    for (const Case& one : all_cases(gpu, sizes)) {
      if (one.bytes == 0 && one.flops == 0) continue;
      one.reset();
      const double seconds = seconds_of(gpu, one.run);
      const bool by_flops = one.flops > 0;
      const double rate = (by_flops ? one.flops : one.bytes) / seconds;
      std::printf("%-32s %6lld %9.1f us %9.1f %s", one.name.c_str(), static_cast<long long>(sizes.C), 1e6 * seconds,
                  rate / (by_flops ? 1e12 : 1e9), by_flops ? "TFLOP/s" : "GB/s   ");
      if (!by_flops || matrix) std::printf(" %8.0f %%", 100.0 * rate / (by_flops ? *matrix : copy));
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

const char* usage() {
  return "device_check_program [--device N] [--seed N] [--small] [--no-compare] [--no-measure]\n"
         "device_check_program --train MODEL [--device N] [--seed N]\n"
         "device_check_program --nccl GPUS\n"
         "Run by tools/device_check, which builds it. Exit status: 0 all right, 1 something is wrong, 3 there is no "
         "GPU, 4 "
         "left out.\n";
}

Options parse(int argc, char** argv) {
  Options options{.seed = std::random_device{}()};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = [&] {
      char* end = nullptr;
      const char* text = i + 1 < argc ? argv[++i] : "";
      const long long value = std::strtoll(text, &end, 10);
      if (*text == '\0' || *end != '\0' || value < 0) throw Error(argument + ": needs a number, not '" + text + "'");
      return value;
    };
    if (argument == "--device") {
      options.device = static_cast<int>(number());
    } else if (argument == "--seed") {
      options.seed = static_cast<uint64_t>(number());
    } else if (argument == "--break") {
      options.break_case = static_cast<int>(number());
    } else if (argument == "--nccl") {
      options.nccl_gpus = static_cast<int>(number());
    } else if (argument == "--small") {
      options.small = true;
    } else if (argument == "--no-measure") {
      options.measure = false;
    } else if (argument == "--no-compare") {
      options.compare = false;
    } else if (argument == "--train") {
      if (i + 1 == argc) throw Error("--train: which model?");
      options.train = argv[++i];
    } else if (argument == "--help") {
      std::printf("%s", usage());
      std::exit(0);
    } else {
      throw Error("unknown option '" + argument + "'");
    }
  }
  return options;
}

int run(int argc, char** argv) {
  constexpr int kNoDevice = 3;
  constexpr int kLeftOut = 4;
  const Options options = parse(argc, argv);
  if (options.nccl_gpus > 0) {
    const bool is_right = nccl_sums_are_right(options.nccl_gpus);
    std::printf("NCCL over %d GPUs: %s\n", options.nccl_gpus, is_right ? "right" : "WRONG");
    return is_right ? 0 : 1;
  }
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "device_check: no GPU can be used here: %s\n",
                 found == cudaSuccess ? "there is none" : cudaGetErrorString(found));
    return kNoDevice;
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties");
  std::printf("device %d: %s, sm_%d%d, %d multiprocessors, %.0f GiB; seed %llu\n", options.device, properties.name,
              properties.major, properties.minor, properties.multiProcessorCount,
              static_cast<double>(properties.totalGlobalMem) / (1 << 30),
              static_cast<unsigned long long>(options.seed));
  Gpu gpu(options.device, options.seed);
  if (!options.train.empty()) {
    const Training training = measure_training(gpu, options.train);
    if (training == Training::learns_nothing)
      std::printf("training %s: its loss does not fall\n", options.train.c_str());
    return training == Training::learns ? 0 : training == Training::left_out ? kLeftOut : 1;
  }
  const int failures = options.compare ? compare_all(gpu, options) : 0;
  if (options.measure) measure_all(gpu);
  return failures == 0 ? 0 : 1;
}

}  // namespace

}  // namespace hat::check_device

int main(int argc, char** argv) {
  try {
    return hat::check_device::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_check: %s\n", error.what());
    return 1;
  }
}
