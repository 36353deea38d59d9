#pragma once
#include <cstdint>

#include "hat/device/device_buffer.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/model/layout.hpp"

namespace hat {

/// Position of a tensor in its block. Throws Error if there is none: layout and model disagree.
int64_t tensor_offset(const BlockSpec& block, const char* name);

/// A packed batch in memory of the device, as the blocks see it.
struct DeviceBatch {
  int64_t tokens = 0;                  ///< T
  const int32_t* inputs = nullptr;     ///< (T)
  const int32_t* targets = nullptr;    ///< (T)
  const int32_t* positions = nullptr;  ///< (T), counted from 0 in each document
  int64_t documents = 0;
  const int32_t* offsets = nullptr;  ///< (documents + 1)
  const float* cosine = nullptr;     ///< (longest document, D / 2), Llama family only
  const float* sine = nullptr;
};

/// Buffers that hold nothing between two blocks, shared by all of them. Grow to the largest batch, then stay.
struct Scratch {
  DeviceBuffer<float> wide;    ///< gradient of q, k, v (T, (H + 2 K) D), of gate and up (T, 2 F), or of up (T, F)
  DeviceBuffer<float> middle;  ///< gradient of the attention's output (T, C) or of the activation (T, F)
  DeviceBuffer<float> narrow;  ///< gradient of the normalised input (T, C)
  DeviceBuffer<float> attention;
};

/// What every block needs in a pass.
struct PassContext {
  const Operations& ops;
  const Stream& stream;
  const DeviceBatch& batch;
  Scratch& scratch;
};

/// y (T, rows) = x (T, columns) weight^T + beta y, for a weight (rows, columns).
inline void multiply_forward(const PassContext& pass, int64_t T, int64_t rows, int64_t columns, const float* x,
                             const float* weight, float beta, float* y) {
  pass.ops.gemm(pass.stream, Transpose::no, Transpose::yes, T, rows, columns, 1.0f, x, columns, weight, columns, beta,
                y, rows);
}

/// dx (T, columns) = dy (T, rows) weight.
inline void multiply_input_gradient(const PassContext& pass, int64_t T, int64_t rows, int64_t columns, const float* dy,
                                    const float* weight, float* dx) {
  pass.ops.gemm(pass.stream, Transpose::no, Transpose::no, T, columns, rows, 1.0f, dy, rows, weight, columns, 0.0f, dx,
                columns);
}

/// d_weight (rows, columns) += dy^T x.
inline void multiply_weight_gradient(const PassContext& pass, int64_t T, int64_t rows, int64_t columns, const float* dy,
                                     const float* x, float* d_weight) {
  pass.ops.gemm(pass.stream, Transpose::yes, Transpose::no, rows, columns, T, 1.0f, dy, rows, x, columns, 1.0f,
                d_weight, columns);
}

}  // namespace hat
