#include <dnnl.h>
#include <dnnl_debug.h>
#include <omp.h>

#include "../cpu_kernels.hpp"
#include "hat/core/error.hpp"

namespace hat::cpu {

namespace {

/// oneDNN takes its thread count from OpenMP; this sets it for one call and gives the caller's back.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : previous_(omp_get_max_threads()), changed_(previous_ != threads) {
    if (changed_) omp_set_num_threads(threads);
  }
  ~ThreadCount() {
    if (changed_) omp_set_num_threads(previous_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int previous_;
  bool changed_;
};

}  // namespace

void gemm(const Stream& stream, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
          float alpha, const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0 || k == 0) return;  // k = 0 adds nothing to c
  const ThreadCount threads(stream.threads());
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a == Transpose::yes ? 'T' : 'N', transpose_b == Transpose::yes ? 'T' : 'N', m, n, k, alpha,
                 a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    throw Error(fmt::format("oneDNN sgemm of {} x {} x {} failed: {}", m, n, k, dnnl_status2str(status)));
  }
}

}  // namespace hat::cpu
