#pragma once
// Instructions that CUDA C++ has no functions for, and shared memory whose size the launch decides. Everything that is
// PTX stands here, so that the kernels are plain C++ otherwise.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace hat::cuda {

/// Architectures before sm_90, which keep fewer of a block's own numbers elsewhere than in the registers of threads:
/// there kernels that need almost all 255 must get by with less, or they spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kFewRegisters = true;
#else
inline constexpr bool kFewRegisters = false;
#endif

/// The shared memory that a launch asks for; aligned to 16 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char hat_shared_memory[];
  return reinterpret_cast<T*>(hat_shared_memory);
}

/// Begins to copy 16 bytes from global to shared memory, both aligned to 16; zeros where `is_inside` is false.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool is_inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
/// The same of 8 bytes, aligned to 8.
__device__ __forceinline__ void copy_async_8(void* shared, const void* global, bool is_inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = is_inside ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
/// Copies begun since the last call belong together.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most the newest `kRemaining` groups of this thread are under way. Other threads see what was copied
/// after a barrier.
template <int kRemaining>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kRemaining) : "memory");
}

/// Four 8 x 8 matrices of bf16 from shared memory into the registers of a warp: lane l gives the address of row l % 8
/// of matrix l / 8 (16 bytes, aligned), and gets of each matrix the elements (l / 4, 2 (l % 4)) and the one right of
/// it.
__device__ __forceinline__ void load_matrices_4(uint32_t (&registers)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}
/// The same of the transposed matrices.
__device__ __forceinline__ void load_matrices_4_transposed(uint32_t (&registers)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

/// d (16, 8) += a (16, 16) b (16, 8) on tensor cores: bf16 factors, fp32 sums. With g = lane / 4, t = lane % 4, pairs
/// of neighbours in a register:
///   a[0]: (g, 2t), a[1]: (g + 8, 2t), a[2]: (g, 2t + 8), a[3]: (g + 8, 2t + 8); pairs along a row
///   b[0]: (2t, g), b[1]: (2t + 8, g); pairs along a column
///   d[0]: (g, 2t), d[1]: (g, 2t + 1), d[2]: (g + 8, 2t), d[3]: (g + 8, 2t + 1)
__device__ __forceinline__ void multiply_add_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// 2^x with a relative error of about 2^-22.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace hat::cuda
