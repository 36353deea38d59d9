#include "hat/model/precision_choice.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "hat/core/clock.hpp"
#include "hat/core/random.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/model/layout.hpp"

namespace hat {

namespace {

constexpr int64_t kTokens = 256;        // rows of a product
constexpr int64_t kLongestSide = 2048;  // of a matrix: a larger one takes its time in proportion
constexpr int kRuns = 3;                // of which the fastest counts: others may be busy at the start of a run

struct Matrix {
  int64_t rows;
  int64_t columns;
  bool operator<(const Matrix& other) const { return std::pair(rows, columns) < std::pair(other.rows, other.columns); }
};

/// How often each shape is multiplied in a pass.
std::map<Matrix, double> matrices_of(const ModelConfig& config) {
  const ModelLayout layout = make_layout(config);
  std::map<Matrix, double> result;
  for (const BlockSpec& block : layout.blocks) {
    const bool embedding = &block == &layout.blocks.front();
    for (const TensorSpec& tensor : block.tensors) {
      // An embedding is looked up; it is multiplied only where it is the output matrix as well.
      if (tensor.is_vector || (embedding && !(config.tied && &tensor == &block.tensors.front()))) continue;
      const Matrix measured{std::min(tensor.rows, kLongestSide), std::min(tensor.columns, kLongestSide)};
      result[measured] += static_cast<double>(tensor.size()) / static_cast<double>(measured.rows * measured.columns);
    }
  }
  return result;
}

DeviceBuffer<float> random_buffer(const Stream& stream, int64_t count) {
  DeviceBuffer<float> buffer(stream.device(), count);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_uniform(1, 0, i)) - 0.5F;
  copy_to_device(stream, values.data(), buffer.data(), count);
  stream.synchronize();
  return buffer;
}

}  // namespace

ProductTimes measure_products(const ModelConfig& config, const ComputeOptions& options, int device_index) {
  const Stream stream(options.device_at(device_index));
  const Operations& ops = operations(options.device);
  const std::map<Matrix, double> matrices = matrices_of(config);
  int64_t longest_side = 0;
  int64_t largest = 0;
  for (const auto& [matrix, times] : matrices) {
    longest_side = std::max({longest_side, matrix.rows, matrix.columns});
    largest = std::max(largest, matrix.rows * matrix.columns);
  }
  const DeviceBuffer<float> x = random_buffer(stream, kTokens * longest_side);
  const DeviceBuffer<float> y = random_buffer(stream, kTokens * longest_side);
  const DeviceBuffer<float> weight = random_buffer(stream, largest);
  DeviceBuffer<float> out(stream.device(), std::max(largest, kTokens * longest_side));
  const auto seconds = [&](Element arithmetic, const Matrix& m) {
    double best = 1e300;
    for (int run = 0; run < kRuns; ++run) {
      const double start_s = now_s();
      ops.gemm(stream, arithmetic, Transpose::no, Transpose::yes, kTokens, m.rows, m.columns, 1.0F, x.data(), m.columns,
               weight.data(), m.columns, 0.0F, out.data(), m.rows);
      ops.gemm(stream, arithmetic, Transpose::no, Transpose::no, kTokens, m.columns, m.rows, 1.0F, y.data(), m.rows,
               weight.data(), m.columns, 0.0F, out.data(), m.columns);
      ops.gemm(stream, arithmetic, Transpose::yes, Transpose::no, m.rows, m.columns, kTokens, 1.0F, y.data(), m.rows,
               x.data(), m.columns, 0.0F, out.data(), m.columns);
      stream.synchronize();
      best = std::min(best, now_s() - start_s);
    }
    return best;
  };
  ProductTimes times;
  for (const auto& [matrix, count] : matrices) {
    times.fp32_s += count * seconds(Element::fp32, matrix);
    times.bf16_s += count * seconds(Element::bf16, matrix);
  }
  return times;
}

}  // namespace hat
