#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__x86_64__)
// Changes stacks: what a call must keep goes on the old one, and comes from the new one. (swapcontext makes two system
// calls, and under AddressSanitizer clears the shadow of a whole stack, each time.)
extern "C" void hat_switch_stack(void** old_stack, void* new_stack);
#endif

namespace cuda_emulation {

/// Where a thread of execution stands.
#if defined(__x86_64__)
class Context {
 public:
  /// Begins with `main`, which never returns, on its own stack.
  void begin(char* stack, size_t bytes, void (*main)()) {
    constexpr size_t kRegisters = 6;
    auto top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top) - 2;  // a call leaves the stack at 8 modulo 16
    words[0] = reinterpret_cast<void*>(main);
    words[1] = nullptr;
    top_ = words - kRegisters;
    std::fill_n(static_cast<void**>(top_), kRegisters, nullptr);
  }
  void switch_to(Context& other) { hat_switch_stack(&top_, other.top_); }

 private:
  void* top_ = nullptr;
};
#else
class Context {
 public:
  void begin(char* stack, size_t bytes, void (*main)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, main, 0);
  }
  void switch_to(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_ = {};
};
#endif

}  // namespace cuda_emulation
