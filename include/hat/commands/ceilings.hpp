#pragma once

namespace hat {

/// What this very machine can do, measured. Every rate is the best of several short runs.
struct Ceilings {
  int cores = 0;                    ///< threads of the "all" figures
  double fma_one_gflops = 0.0;      ///< fp32 multiply-adds in registers, one core
  double fma_all_gflops = 0.0;      ///< all cores together
  double copy_gbytes_s = 0.0;       ///< y = x, all cores: 8 bytes per element, write-allocate traffic not counted
  double triad_gbytes_s = 0.0;      ///< z = x + a y, all cores: 12 bytes per element
  double product_one_gflops = 0.0;  ///< matrix product 1024^3 through the kernels, one thread
  double product_all_gflops = 0.0;  ///< all cores
};

/// Takes about two seconds. Throws Error when a loop did not compute what it should have: its rate would mean nothing.
Ceilings measure_ceilings(int cores);

}  // namespace hat
