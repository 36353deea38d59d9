#include "hat/device/profiler.hpp"

#include <nvtx3/nvToolsExtCudaRt.h>

namespace hat {

void begin_profiler_range(const char* name) { static_cast<void>(nvtxRangePushA(name)); }
void end_profiler_range() { static_cast<void>(nvtxRangePop()); }
uint64_t start_profiler_span(const char* name) { return nvtxRangeStartA(name); }
void end_profiler_span(uint64_t span) { nvtxRangeEnd(span); }
void name_profiler_stream(void* stream, const char* name) {
  nvtxNameCudaStreamA(static_cast<cudaStream_t>(stream), name);
}

}  // namespace hat
