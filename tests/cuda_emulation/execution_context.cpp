#include "execution_context.hpp"

#if defined(__x86_64__)
asm(R"(
.text
.globl hat_switch_stack
.type hat_switch_stack, @function
hat_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hat_switch_stack, .-hat_switch_stack
)");
#endif
