#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <map>
#include <memory>

#include "cuda_kernels.hpp"
#include "hat/core/error.hpp"
#include "hat/device/cuda_stream.hpp"

// Matrix products through cuBLASLt, which counts by columns: what is a (rows, columns) matrix here is there one of
// (columns, rows), transposed. So c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T, and a matrix that is to be
// transposed here is transposed there, too.
namespace hat::cuda {

namespace {

/// Of the memory that an algorithm may use beside the matrices.
constexpr size_t kMostWorkspace = size_t{32} << 20;
/// More than any algorithm asks for; also that of what is put into scratch memory one behind the other.
constexpr uint32_t kMostAlignment = 256;

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fmt::format("{}: {} ({})", what, cublasLtGetStatusName(status), cublasLtGetStatusString(status)));
}

// Descriptors of the library, freed at the end of a scope.
template <class Pointer, cublasStatus_t (*kDestroy)(Pointer)>
struct Destroy {
  using pointer = Pointer;
  void operator()(Pointer handle) const noexcept { static_cast<void>(kDestroy(handle)); }
};
template <class Pointer, cublasStatus_t (*kDestroy)(Pointer)>
using Handle = std::unique_ptr<Pointer, Destroy<Pointer, kDestroy>>;
using Library = Handle<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// An operand as it lies in memory, row by row.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  uint32_t alignment = 0;                           // of its first element, in bytes; at most kMostAlignment
  auto operator<=>(const Matrix&) const = default;  // NOLINT(modernize-use-nullptr): not of this line
};

/// All that the choice of an algorithm depends on.
struct Shape {
  Element operands = Element::fp32;
  bool tf32 = false;
  bool adds = false;  // beta is not 0
  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;
  Matrix a;
  Matrix b;
  Matrix c;
  auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): not of this line
};

uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t alignment = kMostAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

Layout layout_of(const Matrix& matrix, cudaDataType_t type) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(matrix.columns),
                                        static_cast<uint64_t>(matrix.rows), matrix.stride),
             "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

/// Products of one shape: what is asked for, and how it is best done.
class Product {
 public:
  Product(cublasLtHandle_t library, const Shape& shape) {
    cublasLtMatmulDesc_t operation = nullptr;
    const bool rounds = shape.operands == Element::fp32 && shape.tf32;
    check_blas(
        cublasLtMatmulDescCreate(&operation, rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
    operation_.reset(operation);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a);
    const cudaDataType_t type = shape.operands == Element::fp32 ? CUDA_R_32F : CUDA_R_16BF;
    first_ = layout_of(shape.b, type);
    second_ = layout_of(shape.a, type);
    result_ = layout_of(shape.c, CUDA_R_32F);
    choose(library, shape);
  }

  size_t workspace_bytes() const { return workspace_bytes_; }
  void run(cublasLtHandle_t library, float alpha, const void* a, const void* b, float beta, float* c, void* workspace,
           cudaStream_t stream) const {
    check_blas(cublasLtMatmul(library, operation_.get(), &alpha, b, first_.get(), a, second_.get(), &beta, c,
                              result_.get(), c, result_.get(), &algorithm_, workspace, workspace_bytes_, stream),
               "cublasLtMatmul");
  }

 private:
  void set_transpose(cublasLtMatmulDescAttributes_t which, Transpose transpose) {
    const cublasOperation_t value = transpose == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_blas(cublasLtMatmulDescSetAttribute(operation_.get(), which, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }

  void choose(cublasLtHandle_t library, const Shape& shape) {
    cublasLtMatmulPreference_t made = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
      check_blas(cublasLtMatmulPreferenceSetAttribute(preference.get(), which, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.c.alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.c.alignment);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check_blas(cublasLtMatmulAlgoGetHeuristic(library, operation_.get(), first_.get(), second_.get(), result_.get(),
                                              result_.get(), preference.get(), 1, &best, &found),
               "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw Error("cuBLASLt knows no way to multiply matrices of these sizes on this device");
    check_blas(best.state, "cublasLtMatmulAlgoGetHeuristic");
    algorithm_ = best.algo;
    workspace_bytes_ = best.workspaceSize;
  }

  Operation operation_;
  Layout first_;
  Layout second_;
  Layout result_;
  cublasLtMatmulAlgo_t algorithm_{};
  size_t workspace_bytes_ = 0;
};

/// What a stream keeps for its products.
class Products {
 public:
  Products() {
    cublasLtHandle_t library = nullptr;
    check_blas(cublasLtCreate(&library), "cublasLtCreate");
    library_.reset(library);
  }
  cublasLtHandle_t library() const { return library_.get(); }
  const Product& of(const Shape& shape) {
    // Units have all lengths, and so have products; what is forgotten is chosen again.
    constexpr size_t kMost = 4096;
    const auto found = products_.find(shape);
    if (found != products_.end()) return found->second;
    if (products_.size() >= kMost) products_.clear();
    return products_.try_emplace(shape, library_.get(), shape).first->second;
  }

 private:
  Library library_;
  std::map<Shape, Product> products_;
};

/// The stream's device must be the current one.
Products& products_of(CudaStream& stream) {
  if (!stream.products()) stream.products() = std::make_shared<Products>();
  return *static_cast<Products*>(stream.products().get());
}

/// Columns that a rounded operand's rows are apart: the library's faster algorithms want rows that begin at multiples
/// of 16 bytes.
int64_t rounded_stride(int64_t columns) {
  constexpr int64_t kStep = 8;
  return (columns + kStep - 1) / kStep * kStep;
}

size_t padded(size_t bytes) { return (bytes + kMostAlignment - 1) / kMostAlignment * kMostAlignment; }

size_t scratch_of(int64_t rows, int64_t stride) {
  return padded(static_cast<size_t>(rows * stride) * sizeof(bfloat16));
}

/// An operand on its way to the library.
class Operand {
 public:
  Operand(Element arithmetic, ConstValues values, int64_t rows, int64_t columns, int64_t stride)
      : values_(values),
        stride_(stride),
        matrix_{.rows = rows, .columns = columns, .stride = stride, .alignment = alignment_of(values.data())},
        is_rounded_(arithmetic == Element::bf16 && values.element() == Element::fp32) {
    if (!is_rounded_) return;
    matrix_.stride = rounded_stride(columns);
    matrix_.alignment = kMostAlignment;
  }
  /// As the library gets it.
  const Matrix& matrix() const { return matrix_; }
  size_t scratch_bytes() const { return is_rounded_ ? scratch_of(matrix_.rows, matrix_.stride) : 0; }
  /// Rounds it into `scratch`, if it must be. Returns where it is then.
  const void* bring(const Stream& stream, std::byte* scratch) const {
    if (!is_rounded_) return values_.data();
    round_rows(stream, matrix_.rows, matrix_.columns, values_.fp32(), stride_, reinterpret_cast<bfloat16*>(scratch),
               matrix_.stride);
    return scratch;
  }

 private:
  ConstValues values_;
  int64_t stride_;
  Matrix matrix_;
  bool is_rounded_;  // to bf16, in scratch memory
};

}  // namespace

int64_t gemm_scratch(Element arithmetic, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                     Element a, Element b) {
  const bool turned_a = transpose_a == Transpose::yes;
  const bool turned_b = transpose_b == Transpose::yes;
  const auto rounded = [&](Element element, int64_t rows, int64_t columns) {
    const bool is_rounded = arithmetic == Element::bf16 && element == Element::fp32;
    return is_rounded ? scratch_of(rows, rounded_stride(columns)) : 0;
  };
  return static_cast<int64_t>(rounded(a, turned_a ? k : m, turned_a ? m : k) +
                              rounded(b, turned_b ? n : k, turned_b ? k : n) + kMostWorkspace);
}

void reserve(const Stream& stream, int64_t bytes) {
  CudaStream& cuda = *stream.cuda();
  cuda.make_current();
  cuda.scratch(static_cast<size_t>(bytes));
  products_of(cuda);
}

void gemm(const Stream& stream, Element arithmetic, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
          int64_t k, float alpha, ConstValues a, int64_t lda, ConstValues b, int64_t ldb, float beta, float* c,
          int64_t ldc) {
  if (m == 0 || n == 0 || k == 0) return;  // k = 0 adds nothing to c
  const bool turned_a = transpose_a == Transpose::yes;
  const bool turned_b = transpose_b == Transpose::yes;
  const Operand first(arithmetic, a, turned_a ? k : m, turned_a ? m : k, lda);
  const Operand second(arithmetic, b, turned_b ? n : k, turned_b ? k : n, ldb);
  CudaStream& cuda = *stream.cuda();
  cuda.make_current();
  Products& products = products_of(cuda);
  const Product& product = products.of({.operands = arithmetic,
                                        .tf32 = stream.device().tf32,
                                        .adds = beta != 0,
                                        .transpose_a = transpose_a,
                                        .transpose_b = transpose_b,
                                        .a = first.matrix(),
                                        .b = second.matrix(),
                                        .c = {.rows = m, .columns = n, .stride = ldc, .alignment = alignment_of(c)}});
  const size_t bytes = first.scratch_bytes() + second.scratch_bytes() + product.workspace_bytes();
  auto* scratch = bytes == 0 ? nullptr : static_cast<std::byte*>(cuda.scratch(bytes));
  const void* first_at = first.bring(stream, scratch);
  const void* second_at = second.bring(stream, scratch + first.scratch_bytes());
  std::byte* workspace = scratch + first.scratch_bytes() + second.scratch_bytes();
  product.run(products.library(), alpha, first_at, second_at, beta, c, workspace, cuda.get());
}

}  // namespace hat::cuda
