#pragma once
#include "hat/kernels/values.hpp"

/// Loops over values of either element type are written once, for E = float and E = bfloat16.
namespace hat::cpu {

inline float read(const float* x) { return *x; }
inline float read(const bfloat16* x) { return to_float(*x); }
inline void write(float value, float* x) { *x = value; }
inline void write(float value, bfloat16* x) { *x = to_bfloat16(value); }

/// What is left of `value` once it has been stored as E.
template <typename E>
float rounded(float value) {
  E stored;
  write(value, &stored);
  return read(&stored);
}

/// Calls work(pointer) with the typed pointer of `values`.
template <typename Void, typename Work>
void with_elements(BasicValues<Void> values, const Work& work) {
  if (values.element() == Element::fp32) {
    work(values.fp32());
  } else {
    work(values.bf16());
  }
}

}  // namespace hat::cpu
