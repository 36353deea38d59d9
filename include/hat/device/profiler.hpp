#pragma once
#include <cstdint>
#include <utility>

namespace hat {

/// Ranges of time with names, for profilers that look on (NVTX: Nsight Systems shows them above the kernels they
/// started). Without one, or in a build without NVTX, these do nothing. Names stay in place until the range has ended.

/// The thread's innermost range from here to `end_profiler_range`.
void begin_profiler_range(const char* name);
void end_profiler_range();

/// A range beside others: begins here, and ends where its number is given back, in any order.
uint64_t start_profiler_span(const char* name);
void end_profiler_span(uint64_t span);

/// Names a stream of the device, a cudaStream_t, for them.
void name_profiler_stream(void* stream, const char* name);

/// Such a range for as long as the object lives.
class ProfilerSpan {
 public:
  explicit ProfilerSpan(const char* name) : span_(start_profiler_span(name)), is_open_(true) {}
  ~ProfilerSpan() {
    if (is_open_) end_profiler_span(span_);
  }
  ProfilerSpan(ProfilerSpan&& other) noexcept : span_(other.span_), is_open_(std::exchange(other.is_open_, false)) {}
  ProfilerSpan& operator=(ProfilerSpan&& other) noexcept {
    std::swap(span_, other.span_);
    std::swap(is_open_, other.is_open_);
    return *this;
  }

 private:
  uint64_t span_;
  bool is_open_;
};

}  // namespace hat
