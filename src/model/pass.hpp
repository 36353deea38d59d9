#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "hat/core/gang_range.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/model/compute_options.hpp"
#include "hat/model/layout.hpp"
#include "hat/model/range_exchange.hpp"
#include "hat/model/transformer.hpp"

namespace hat {

/// Position of a tensor in its block. Throws Error if there is none: layout and model disagree.
int64_t tensor_offset(const BlockSpec& block, const char* name);

/// A packed batch in memory of the device, as the blocks see it.
struct DeviceBatch {
  int64_t tokens = 0;                  ///< T
  const int32_t* inputs = nullptr;     ///< (T)
  const int32_t* targets = nullptr;    ///< (T)
  const int32_t* positions = nullptr;  ///< (T), counted from 0 in each document, or from the range's begin
  int64_t documents = 0;
  const int32_t* offsets = nullptr;  ///< (documents + 1)
  const float* cosine = nullptr;     ///< (longest document or end of the range, D / 2), Llama family only
  const float* sine = nullptr;
  const GangRange* range = nullptr;  ///< null: whole documents
};

/// A buffer of floats or of bf16, whichever the model stores its activations as.
class ValuesBuffer {
 public:
  explicit ValuesBuffer(Element element = Element::fp32) : element_(element) {}
  Values data() { return {bytes_.data(), element_}; }
  int64_t element_bytes() const { return hat::element_bytes(element_); }
  int64_t size() const { return bytes_.size() / element_bytes(); }
  void grow(const Device& device, int64_t count) { bytes_.grow(device, count * element_bytes()); }

 private:
  Element element_;
  DeviceBuffer<std::byte> bytes_;
};

// Each owner of buffers names them and their sizes once, in a function `buffers(tokens, visit)`; what `visit` is, adds
// up what they would take, or makes them.

/// What buffers would take.
struct CountBytes {
  int64_t bytes = 0;
  template <typename T>
  void operator()(DeviceBuffer<T>&, int64_t count) {
    bytes += count * static_cast<int64_t>(sizeof(T));
  }
  template <typename T>
  void operator()(PinnedBuffer<T>&, int64_t) {}  // of the host, for what comes and goes
  void operator()(ValuesBuffer& buffer, int64_t count) { bytes += count * buffer.element_bytes(); }
};
/// The same of buffers that are grown for one batch after the other: each to the largest of its own sizes.
class CountLargest {
 public:
  template <typename T>
  void operator()(DeviceBuffer<T>& buffer, int64_t count) {
    note(of_device_, &buffer, count * static_cast<int64_t>(sizeof(T)));
  }
  template <typename T>
  void operator()(PinnedBuffer<T>& buffer, int64_t count) {
    note(of_host_, &buffer, count * static_cast<int64_t>(sizeof(T)));
  }
  void operator()(ValuesBuffer& buffer, int64_t count) { note(of_device_, &buffer, count * buffer.element_bytes()); }
  int64_t device_bytes() const { return sum(of_device_); }
  int64_t host_bytes() const { return sum(of_host_); }

 private:
  using Bytes = std::map<const void*, int64_t>;
  static void note(Bytes& bytes, const void* buffer, int64_t size) {
    int64_t& most = bytes[buffer];
    most = std::max(most, size);
  }
  static int64_t sum(const Bytes& bytes) {
    int64_t all = 0;
    for (const auto& [buffer, size] : bytes) all += size;
    return all;
  }
  Bytes of_device_;
  Bytes of_host_;
};
/// Whether some buffer is smaller than it must be.
struct FindGrowth {
  bool found = false;
  template <typename Buffer>
  void operator()(Buffer& buffer, int64_t count) {
    found = found || buffer.size() < count;
  }
};
struct GrowBuffers {
  const Device& device;
  template <typename Buffer>
  void operator()(Buffer& buffer, int64_t count) const {
    buffer.grow(device, count);
  }
};

/// Buffers that hold nothing between two layers, shared by all of them. R: rows of a chunk, E: elements as stored.
struct Scratch {
  explicit Scratch(Element stored) : up(stored), qkv(stored), attended(stored) {}

  DeviceBuffer<float> normed;       ///< (R, C), the normalised input
  DeviceBuffer<float> wide;         ///< (R, 2 F) or (R, F), product before the activation, or its gradient
  DeviceBuffer<float> middle;       ///< (R, F), the activation, or its gradient
  DeviceBuffer<float> d_normed;     ///< (R, C)
  DeviceBuffer<float> product;      ///< (R, (H + 2 K) D), q, k, v before they are stored in bf16
  ValuesBuffer up;                  ///< (R, 2 F) or (R, F), what the activation is computed from, where it is not kept
  ValuesBuffer qkv;                 ///< (T, (H + 2 K) D), where they are not kept
  ValuesBuffer attended;            ///< (T, H D), the same
  DeviceBuffer<float> log_sum_exp;  ///< (H, T), the same
  DeviceBuffer<float> d_attended;   ///< (T, H D); in the forward pass of a range, its attention's sums
  DeviceBuffer<float> d_qkv;        ///< (T, (H + 2 K) D)
  DeviceBuffer<float> attention;    ///< workspace of the kernels
  DeviceBuffer<float> maxima;       ///< (H, T), of a range's attention
  DeviceBuffer<float> divisors;     ///< (H, T), the same
  DeviceBuffer<float> d_earlier;    ///< (longest earlier range, 2 K D), gradient of its keys and values
};

/// A block's parameters in a pass, as they are and, where the device would round them again in each product, rounded
/// once for all of the pass.
struct BlockParameters {
  const float* values = nullptr;
  const bfloat16* rounded = nullptr;  ///< null: products round by themselves

  /// A weight with rows of so many columns, as products take it. A product's own rounded copy has rows at multiples of
  /// 16 bytes, without which there are no fast products; so it rounds by itself where they would not be here.
  ConstValues weight(int64_t offset, int64_t columns) const {
    if (rounded == nullptr || !fits(offset) || !fits(columns)) return values + offset;
    return rounded + offset;
  }
  /// Whether so many bf16 values are a multiple of 16 bytes.
  static bool fits(int64_t values) { return values % 8 == 0; }
};

/// What every block needs in a pass.
struct PassContext {
  const Operations& ops;
  const Stream& stream;
  const DeviceBatch& batch;
  Scratch& scratch;
  Element arithmetic;
  int64_t chunk_tokens;
  PassObserver& observer;
  RangeExchange* exchange;  ///< of the batch's range, its arrays in the device's memory; null: whole documents

  /// Until what was put into the stream has ended.
  void wait() const { observer.wait_for(stream); }
};

/// Rows [begin, begin + rows) of a batch.
struct Chunk {
  int64_t begin = 0;
  int64_t rows = 0;
};

/// Calls work(chunk) for all rows of the batch, in order.
template <typename Work>
void for_each_chunk(const PassContext& pass, const Work& work) {
  for (int64_t begin = 0; begin < pass.batch.tokens; begin += pass.chunk_tokens) {
    work(Chunk{begin, std::min(pass.chunk_tokens, pass.batch.tokens - begin)});
    if (pass.exchange != nullptr) pass.exchange->progress();
  }
}

/// y (T, rows) = x (T, columns) weight^T for a weight (rows, columns).
inline void multiply_forward(const PassContext& pass, int64_t T, int64_t rows, int64_t columns, ConstValues x,
                             ConstValues weight, float* y) {
  pass.ops.gemm(pass.stream, pass.arithmetic, Transpose::no, Transpose::yes, T, rows, columns, 1.0f, x, columns, weight,
                columns, 0.0f, y, rows);
}

/// dx (T, columns) = dy (T, rows) weight.
inline void multiply_input_gradient(const PassContext& pass, int64_t T, int64_t rows, int64_t columns, const float* dy,
                                    ConstValues weight, float* dx) {
  pass.ops.gemm(pass.stream, pass.arithmetic, Transpose::no, Transpose::no, T, columns, rows, 1.0f, dy, rows, weight,
                columns, 0.0f, dx, columns);
}

/// d_weight (rows, columns) += dy^T x.
inline void multiply_weight_gradient(const PassContext& pass, int64_t T, int64_t rows, int64_t columns, const float* dy,
                                     ConstValues x, float* d_weight) {
  pass.ops.gemm(pass.stream, pass.arithmetic, Transpose::yes, Transpose::no, rows, columns, T, 1.0f, dy, rows, x,
                columns, 1.0f, d_weight, columns);
}

}  // namespace hat
