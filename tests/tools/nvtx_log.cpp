// A profiler that writes the ranges of a process down, one a line: "push NAME", "pop", "start NAME", "end"; and the
// names of its CUDA streams: "stream NAME". Loaded by NVTX itself: NVTX_INJECTION64_PATH names this library, NVTX_LOG
// the file.
#include <nvtx3/nvToolsExtCudaRt.h>

#include <cstdio>
#include <cstdlib>

namespace {

void note(const char* what, const char* name) {
  static std::FILE* const kFile = std::fopen(std::getenv("NVTX_LOG"), "w");
  if (kFile == nullptr) std::abort();
  std::fprintf(kFile, "%s%s\n", what, name);
  std::fflush(kFile);
}

int NVTX_API push(const char* name) {
  note("push ", name);
  return 0;
}
int NVTX_API pop() {
  note("pop", "");
  return 0;
}
nvtxRangeId_t NVTX_API start(const char* name) {
  static nvtxRangeId_t number = 0;
  note("start ", name);
  return ++number;
}
void NVTX_API end(nvtxRangeId_t /*number*/) { note("end", ""); }

void NVTX_API name_stream(cudaStream_t /*stream*/, const char* name) { note("stream ", name); }

template <class Function>
NvtxFunctionPointer pointer(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int count = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count) == 0) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = pointer(push);
  *functions[NVTX_CBID_CORE_RangePop] = pointer(pop);
  *functions[NVTX_CBID_CORE_RangeStartA] = pointer(start);
  *functions[NVTX_CBID_CORE_RangeEnd] = pointer(end);
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CUDART, &functions, &count) != 0) {
    *functions[NVTX_CBID_CUDART_NameCudaStreamA] = pointer(name_stream);
  }
  return 1;
}
