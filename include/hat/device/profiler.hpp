#pragma once
#include <cstdint>

namespace hat {

/// Ranges of time with names, for profilers that look on (NVTX: Nsight Systems shows them above the kernels they started).
/// Without one, or in a build without NVTX, these do nothing. Names stay in place until the range has ended.

/// The thread's innermost range from here to `end_profiler_range`.
void begin_profiler_range(const char* name);
void end_profiler_range();

/// A range beside others: begins here, and ends where its number is given back, in any order.
uint64_t start_profiler_span(const char* name);
void end_profiler_span(uint64_t span);

}  // namespace hat
