#pragma once
#include <cstdint>

#include "hat/config/deck.hpp"
#include "hat/kernels/operations.hpp"

namespace hat {

/// How a Transformer computes. Nothing of it changes what is computed, but for the rounding of Element::bf16, the order
/// in which the rows of a weight's gradient are added (chunk_tokens), the last bits of products (threads) and of all
/// (device), and the rounding of tf32.
struct ComputeOptions {
  int threads = 1;
  /// fp32; or bf16: matrix products and attention on operands rounded to bf16, with fp32 sums; parameters, residual
  /// stream, norms, softmax, loss and gradients stay fp32. Stored activations are bf16.
  Element arithmetic = Element::fp32;
  Recompute recompute = Recompute::none;  ///< never `automatic`
  /// Rows of a batch (chunks of a long document, several short ones) that projections and MLPs take at a time. What
  /// exists for all rows is the residual stream between blocks and, of one attention block at a time (of all with
  /// Recompute::none), q, k, v, the attention's output and their gradients. The head has pieces of its own.
  int64_t chunk_tokens = 2048;
  const Operations* operations = nullptr;  ///< null: those of the device
  DeviceKind device = DeviceKind::cpu;     ///< which one of its kind, is chosen by each worker
  bool tf32 = false;                       ///< Device::tf32

  /// The device, `index` among those of its kind.
  Device device_at(int index) const { return {.kind = device, .index = index, .threads = threads, .tf32 = tf32}; }
};

/// As in a deck.
const char* name_of(Element arithmetic);   ///< "fp32", "bf16"
const char* name_of(Recompute recompute);  ///< "none", "inner", "full"

}  // namespace hat
