#pragma once
#include <optional>

#include "hat/kernels/values.hpp"

namespace hat {

/// GFLOP/s of multiply-adds that stay in registers, fp32 or pairs of bf16 numbers into an fp32 sum, `cores` threads at
/// once, best of several runs (0.4 s together). Empty where this build has no instruction for it. Throws Error when the
/// loop did not compute what it should have.
std::optional<double> multiply_add_gflops(Element arithmetic, int cores);

/// GFLOP/s of a matrix product 1024^3 through the kernels, best of several runs. Throws Error when its result is wrong.
double product_gflops(Element arithmetic, int threads);

/// What this very machine can do, measured. Every rate is the best of several short runs.
struct Ceilings {
  int cores = 0;                          ///< threads of the "all" figures
  double fma_one_gflops = 0.0;            ///< fp32 multiply-adds in registers, one core
  double fma_all_gflops = 0.0;            ///< all cores together
  std::optional<double> bf16_one_gflops;  ///< bf16 pairs into fp32 in registers, one core; empty: no such instruction
  std::optional<double> bf16_all_gflops;  ///< all cores together
  double copy_gbytes_s = 0.0;             ///< y = x, all cores: 8 bytes per element, write-allocate traffic not counted
  double triad_gbytes_s = 0.0;            ///< z = x + a y, all cores: 12 bytes per element
  double product_one_gflops = 0.0;        ///< matrix product 1024^3 through the kernels, fp32, one thread
  double product_all_gflops = 0.0;        ///< all cores
  double bf16_product_one_gflops = 0.0;
  double bf16_product_all_gflops = 0.0;
};

/// Takes about three seconds. Throws Error when a loop did not compute what it should have: its rate would mean
/// nothing.
Ceilings measure_ceilings(int cores);

}  // namespace hat
