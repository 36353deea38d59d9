#pragma once
#include "hat/kernels/operations.hpp"

/// Matrix products of one thread: what `gemm` shares out. Arguments as in Operations::gemm.
namespace hat::cpu {

/// By the back end, oneDNN or CBLAS.
void serial_gemm_fp32(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

/// Operands of either element type, rounded to bf16 where they are packed.
void serial_gemm_bf16(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                      ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c, int64_t ldc);

}  // namespace hat::cpu
