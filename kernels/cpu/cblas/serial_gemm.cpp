#include "../serial_gemm.hpp"

#include <cblas.h>

#include <climits>

#include "hat/core/error.hpp"

// CBLAS has no call for the thread count; OpenBLAS, the usual one, has this. Null with other libraries, whose own
// environment variables then decide.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace hat::cpu {

void serial_gemm_fp32(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  for (const int64_t size : {m, n, k, lda, ldb, ldc}) {
    if (size > INT_MAX) throw Error(fmt::format("CBLAS cannot multiply matrices with {} rows or columns", size));
  }
  static const bool once = [] {  // the threads are ours: `gemm` shares products out
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
  const auto flag = [](Transpose transpose) { return transpose == Transpose::yes ? CblasTrans : CblasNoTrans; };
  const auto size = [](int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, flag(transpose_a), flag(transpose_b), size(m), size(n), size(k), alpha, a, size(lda), b,
              size(ldb), beta, c, size(ldc));
}

}  // namespace hat::cpu
