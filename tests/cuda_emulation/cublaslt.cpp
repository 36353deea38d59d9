#include "cublasLt.h"

#include <cstring>
#include <stdexcept>

#include "hat/kernels/operations.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// By the documentation of the library. What it would refuse, or what it would do wrong with, is refused here, too:
// wrong strides, matrices that do not fit, memory less aligned than was said, and less workspace than the algorithm
// wants.

struct cublasLtOfEmulation {
  int device = 0;
};
struct cublasLtMatmulDescOfEmulation {
  cublasComputeType_t compute;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
};
struct cublasLtMatrixLayoutOfEmulation {
  cudaDataType type;
  int64_t rows;  // of matrices that lie in memory column by column
  int64_t columns;
  int64_t stride;
};
struct cublasLtMatmulPreferenceOfEmulation {
  size_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};

namespace {

cuda_emulation::ProductCounters counted;

/// What an algorithm is here: it was chosen for these.
struct Algorithm {
  uint32_t alignment[3];
  int32_t padding;
  uint64_t workspace;
  int64_t rows, columns, inner;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

constexpr size_t kWorkspace = 4096;

int64_t rows_of(const cublasLtMatrixLayoutOfEmulation& matrix, cublasOperation_t transpose) {
  return transpose == CUBLAS_OP_N ? matrix.rows : matrix.columns;
}
int64_t columns_of(const cublasLtMatrixLayoutOfEmulation& matrix, cublasOperation_t transpose) {
  return transpose == CUBLAS_OP_N ? matrix.columns : matrix.rows;
}

bool fit(const cublasLtMatmulDescOfEmulation& operation, const cublasLtMatrixLayoutOfEmulation& a,
         const cublasLtMatrixLayoutOfEmulation& b, const cublasLtMatrixLayoutOfEmulation& c) {
  const bool types =
      a.type == b.type && c.type == CUDA_R_32F && (a.type == CUDA_R_32F || operation.compute == CUBLAS_COMPUTE_32F);
  return types && rows_of(a, operation.transpose_a) == c.rows && columns_of(b, operation.transpose_b) == c.columns &&
         columns_of(a, operation.transpose_a) == rows_of(b, operation.transpose_b);
}

/// Every column must be memory of somebody's; the products are not compiled with AddressSanitizer.
void look_at(const void* data, const cublasLtMatrixLayoutOfEmulation& matrix) {
#if defined(__SANITIZE_ADDRESS__)
  const int64_t bytes = matrix.type == CUDA_R_32F ? 4 : 2;
  for (int64_t column = 0; column < matrix.columns; ++column) {
    auto* first = const_cast<char*>(static_cast<const char*>(data)) + column * matrix.stride * bytes;
    if (__asan_region_is_poisoned(first, static_cast<size_t>(matrix.rows * bytes)) != nullptr) {
      throw std::out_of_range("a matrix product beyond the end of its matrix");
    }
  }
#else
  static_cast<void>(data);
  static_cast<void>(matrix);
#endif
}

hat::ConstValues values(const void* data, cudaDataType type) {
  return {data, type == CUDA_R_32F ? hat::Element::fp32 : hat::Element::bf16};
}

hat::Transpose transpose(cublasOperation_t operation) {
  return operation == CUBLAS_OP_N ? hat::Transpose::no : hat::Transpose::yes;
}

template <class T>
cublasStatus_t assign(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace cuda_emulation {
const ProductCounters& product_counters() { return counted; }
}  // namespace cuda_emulation

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_INVALID_VALUE:
      break;
  }
  return "CUBLAS_STATUS_INVALID_VALUE";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* library) {
  *library = new cublasLtOfEmulation;  // NOLINT: as the C interface wants it, here and below
  cudaGetDevice(&(*library)->device);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) {
  delete library;  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  if (rows == 0 || columns == 0 || stride < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOfEmulation{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns),
                                                stride};  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *operation = new cublasLtMatmulDescOfEmulation{.compute = compute};  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return assign(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? operation->transpose_a : operation->transpose_b, value,
                bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOfEmulation;  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;  // NOLINT
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return assign(preference->workspace, value, bytes);
  return assign(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (library == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (c != d || wanted < 1 || !fit(*operation, *a, *b, *c)) return CUBLAS_STATUS_INVALID_VALUE;
  ++counted.chosen;
  const uint32_t* alignment = preference->alignment;
  const Algorithm chosen{.alignment = {alignment[0], alignment[1], alignment[2]},
                         .padding = 0,
                         .workspace = preference->workspace < kWorkspace ? 0 : kWorkspace,
                         .rows = c->rows,
                         .columns = c->columns,
                         .inner = columns_of(*a, operation->transpose_a)};
  results[0] = {};
  std::memcpy(&results[0].algo, &chosen, sizeof chosen);
  results[0].workspaceSize = chosen.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (library == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (library->device != cuda_emulation::device_of(stream)) return CUBLAS_STATUS_INVALID_VALUE;
  if (c != d || c_layout != d_layout || !fit(*operation, *a_layout, *b_layout, *c_layout)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Algorithm chosen{};
  std::memcpy(&chosen, algorithm, sizeof chosen);
  const void* matrices[3] = {a, b, c};
  for (int i = 0; i < 3; ++i) {
    if (reinterpret_cast<uintptr_t>(matrices[i]) % chosen.alignment[i] != 0) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int64_t inner = columns_of(*a_layout, operation->transpose_a);
  if (chosen.rows != c_layout->rows || chosen.columns != c_layout->columns || chosen.inner != inner ||
      workspace_bytes < chosen.workspace) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++counted.products;
  if (operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32) ++counted.rounded_to_tf32;
  float factor = 0;
  float factor_of_c = 0;
  std::memcpy(&factor, alpha, sizeof factor);
  std::memcpy(&factor_of_c, beta, sizeof factor_of_c);
  cuda_emulation::enqueue(stream, [=, x = *operation, left = *a_layout, right = *b_layout, result = *c_layout] {
    look_at(a, left);
    look_at(b, right);
    look_at(c, result);
    std::memset(workspace, 0xff, chosen.workspace);  // nothing of anybody's is there
    // By rows: result^T = right^T left^T.
    static const hat::Stream cpu{hat::Device{}};
    const hat::Element arithmetic = left.type == CUDA_R_32F ? hat::Element::fp32 : hat::Element::bf16;
    hat::operations(hat::DeviceKind::cpu)
        .gemm(cpu, arithmetic, transpose(x.transpose_b), transpose(x.transpose_a), result.columns, result.rows, inner,
              factor, values(b, right.type), right.stride, values(a, left.type), left.stride, factor_of_c,
              static_cast<float*>(d), result.stride);
  });
  return CUBLAS_STATUS_SUCCESS;
}
