#include <cublasLt.h>

#include <memory>
#include <string>

#include "device/dynamic_library.hpp"
#include "hat/core/error.hpp"

// cuBLASLt's functions, as far as HAT calls them, from the library that is loaded when the first of them is called: it
// has half a gigabyte, and the same executable runs on hosts that have neither GPU nor CUDA.
namespace {

/// Never unloaded: handles of it live as long as streams do.
const hat::DynamicLibrary& library() {
  static const auto* const kLibrary = [] {
    // HAT_CUBLASLT: the one that this was built with, where the loader does not find any by itself.
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    auto loaded = std::make_unique<hat::DynamicLibrary>(std::initializer_list<const char*>{name.c_str(), HAT_CUBLASLT});
    if (!loaded->is_loaded()) throw hat::Error(fmt::format("cannot load {}: {}", name, loaded->problem()));
    return loaded.release();
  }();
  return *kLibrary;
}

template <class Function>
Function* find(const char* name) {
  auto* const function = library().find<Function>(name);
  if (function == nullptr) throw hat::Error(fmt::format("cuBLASLt has no function {}", name));
  return function;
}

}  // namespace

#define HAT_FORWARD(name, ...)                               \
  static auto* const function = find<decltype(name)>(#name); \
  return function(__VA_ARGS__)

const char* cublasLtGetStatusName(cublasStatus_t status) { HAT_FORWARD(cublasLtGetStatusName, status); }
const char* cublasLtGetStatusString(cublasStatus_t status) { HAT_FORWARD(cublasLtGetStatusString, status); }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* library) { HAT_FORWARD(cublasLtCreate, library); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) { HAT_FORWARD(cublasLtDestroy, library); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  HAT_FORWARD(cublasLtMatrixLayoutCreate, layout, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  HAT_FORWARD(cublasLtMatrixLayoutDestroy, layout);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  HAT_FORWARD(cublasLtMatmulDescCreate, operation, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  HAT_FORWARD(cublasLtMatmulDescDestroy, operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  HAT_FORWARD(cublasLtMatmulDescSetAttribute, operation, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  HAT_FORWARD(cublasLtMatmulPreferenceCreate, preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  HAT_FORWARD(cublasLtMatmulPreferenceDestroy, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  HAT_FORWARD(cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t library, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  HAT_FORWARD(cublasLtMatmulAlgoGetHeuristic, library, operation, a, b, c, d, preference, wanted, results, found);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t library, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  HAT_FORWARD(cublasLtMatmul, library, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
              algorithm, workspace, workspace_bytes, stream);
}
