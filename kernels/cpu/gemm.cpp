#include <algorithm>
#include <exception>

#include "cpu_kernels.hpp"
#include "serial_gemm.hpp"

namespace hat::cpu {

namespace {

// Shares are multiples of this, so that few tiles of the back ends are cut: a multiple of 12, 32 and 48.
constexpr int64_t kShareStep = 96;
// Below this many multiply-adds a product is done before other threads have woken up.
constexpr int64_t kSmall = int64_t{1} << 18;

struct Product {
  Element arithmetic;
  Transpose transpose_a;
  Transpose transpose_b;
  int64_t k;
  float alpha;
  ConstValues a;
  int64_t lda;
  ConstValues b;
  int64_t ldb;
  float beta;
  float* c;
  int64_t ldc;
};

/// Rows [row, row + m) and columns [column, column + n) of c.
void multiply_part(const Product& p, int64_t row, int64_t m, int64_t column, int64_t n) {
  const ConstValues a = p.a + (p.transpose_a == Transpose::no ? row * p.lda : row);
  const ConstValues b = p.b + (p.transpose_b == Transpose::no ? column : column * p.ldb);
  float* c = p.c + row * p.ldc + column;
  if (p.arithmetic == Element::fp32) {
    serial_gemm_fp32(p.transpose_a, p.transpose_b, m, n, p.k, p.alpha, a.fp32(), p.lda, b.fp32(), p.ldb, p.beta, c,
                     p.ldc);
  } else {
    serial_gemm_bf16(p.transpose_a, p.transpose_b, m, n, p.k, p.alpha, a, p.lda, b, p.ldb, p.beta, c, p.ldc);
  }
}

}  // namespace

void gemm(const Stream& stream, Element arithmetic, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
          int64_t k, float alpha, ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c,
          int64_t ldc) {
  if (m == 0 || n == 0 || k == 0) return;  // k = 0 adds nothing to c
  const Product product{arithmetic, transpose_a, transpose_b, k, alpha, a, lda, b, ldb, beta, c, ldc};
  // Each thread has a stretch of the longer side of c: both operands are packed less than twice per thread that way,
  // and no two threads touch one element.
  const int64_t side = std::max(m, n);
  const int64_t steps = (side + kShareStep - 1) / kShareStep;
  const int64_t parts = m * n * k < kSmall ? 1 : std::min<int64_t>(stream.threads(), steps);
  if (parts == 1) {
    multiply_part(product, 0, m, 0, n);
    return;
  }
  const auto team = static_cast<int>(parts);
  std::exception_ptr failure;  // no exception may leave a parallel region
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = steps * part / parts * kShareStep;
    const int64_t end = std::min(side, steps * (part + 1) / parts * kShareStep);
    try {
      if (m >= n) {
        multiply_part(product, begin, end - begin, 0, n);
      } else {
        multiply_part(product, 0, m, begin, end - begin);
      }
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hat::cpu
