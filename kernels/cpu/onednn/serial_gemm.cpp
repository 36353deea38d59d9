#include "../serial_gemm.hpp"

#include <dnnl.h>
#include <dnnl_debug.h>
#include <omp.h>

#include "hat/core/error.hpp"

namespace hat::cpu {

namespace {

/// oneDNN takes its thread count from OpenMP; this keeps it to one thread for one call.
class OneThread {
 public:
  OneThread() : previous_(omp_get_max_threads()) {
    if (previous_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (previous_ != 1) omp_set_num_threads(previous_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int previous_;
};

}  // namespace

void serial_gemm_fp32(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a == Transpose::yes ? 'T' : 'N', transpose_b == Transpose::yes ? 'T' : 'N', m, n, k, alpha,
                 a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    throw Error(fmt::format("oneDNN sgemm of {} x {} x {} failed: {}", m, n, k, dnnl_status2str(status)));
  }
}

}  // namespace hat::cpu
