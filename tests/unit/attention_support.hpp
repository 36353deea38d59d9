#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "hat/core/bfloat16.hpp"
#include "kernel_support.hpp"

/// What the tests of attention share: its definition in plain double loops, and how far results may be from it.
namespace hat::test {

inline constexpr Element kElements[] = {Element::fp32, Element::bf16};

/// Whether kernels are tested in emulation: then a second is a few thousand scores, and sizes are those that matter to
/// CUDA's tiles, of 32, 64 and 128 rows.
inline bool is_emulated() { return kernel_targets().front().speed == Speed::emulated; }

/// The targets whose bits are held against those of the first: all others, or one of them in turn where they are slow.
inline std::vector<KernelTarget> other_targets() {
  std::vector<KernelTarget> targets = kernel_targets();
  targets.erase(targets.begin());
  static size_t turn = 0;
  if (is_emulated()) return {targets[turn++ % targets.size()]};
  return targets;
}

struct AttentionCase {
  std::vector<int32_t> lengths;
  int64_t heads;
  int64_t kv_heads;
  int64_t D;
  Element element = Element::fp32;
  double amplitude = 1.0;  ///< of q and k: far from uniform probabilities need more than 1
};

inline std::string describe(const AttentionCase& test) {
  std::string text = test.element == Element::bf16 ? "bf16" : "fp32";
  text += " D " + std::to_string(test.D) + " heads " + std::to_string(test.heads) + "/" +
          std::to_string(test.kv_heads) + " lengths";
  for (const int32_t length : test.lengths) text += " " + std::to_string(length);
  return text;
}

/// Inputs and results of one batch. With bf16, q, k, v and out are bf16, and d_out is representable in it.
class Batch {
 public:
  explicit Batch(const AttentionCase& test) : test_(test), offsets_{0} {
    for (const int32_t length : test.lengths) offsets_.push_back(offsets_.back() + length);
    shape_ = {.tokens = offsets_.back(),
              .documents = static_cast<int64_t>(test.lengths.size()),
              .offsets = offsets_.data(),
              .heads = test.heads,
              .kv_heads = test.kv_heads,
              .head_size = test.D,
              .q_stride = (test.heads + 2 * test.kv_heads) * test.D,
              .kv_stride = (test.heads + 2 * test.kv_heads) * test.D};
    qkv = random_values(T() * stride(), 1);
    for (int64_t i = 0; i < T() * stride(); ++i) {
      if (i % stride() < width() + kv_width()) qkv[static_cast<size_t>(i)] *= static_cast<float>(test.amplitude);
    }
    d_out = random_values(T() * width(), 2);
    if (bf16()) {
      for (float& x : qkv) x = to_float(to_bfloat16(x));
      for (float& x : d_out) x = to_float(to_bfloat16(x));
    }
  }
  Batch(const Batch&) = delete;

  void run(const KernelTarget& target) {
    const Stream& stream = target.stream();
    const Operations& ops = *target.operations;
    constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
    Floats workspace(static_cast<size_t>(ops.attention_workspace(stream, shape_)), kNan);
    out.assign(d_out.size(), kNan);
    log_sum_exp.assign(static_cast<size_t>(T() * test_.heads), kNan);
    d_qkv.assign(qkv.size(), kNan);
    std::vector<bfloat16> narrow_qkv(qkv.size());
    std::vector<bfloat16> narrow_out(out.size(), to_bfloat16(kNan));
    to_bfloat16(qkv, narrow_qkv);
    const ConstValues q = bf16() ? ConstValues(narrow_qkv.data()) : ConstValues(qkv.data());
    const Values o = bf16() ? Values(narrow_out.data()) : Values(out.data());
    ops.attention_forward(stream, shape_, q, q + width(), q + width() + kv_width(), o, log_sum_exp.data(),
                          workspace.data());
    std::fill(workspace.begin(), workspace.end(), kNan);
    ops.attention_backward(stream, shape_, q, q + width(), q + width() + kv_width(), o, log_sum_exp.data(),
                           d_out.data(), d_qkv.data(), d_qkv.data() + width(), d_qkv.data() + width() + kv_width(),
                           workspace.data());
    if (bf16()) to_float(narrow_out, out);
  }

  int64_t T() const { return shape_.tokens; }
  int64_t width() const { return test_.heads * test_.D; }
  int64_t kv_width() const { return test_.kv_heads * test_.D; }
  int64_t stride() const { return shape_.q_stride; }
  bool bf16() const { return test_.element == Element::bf16; }
  const AttentionShape& shape() const { return shape_; }
  /// Whether the results have the same bits.
  bool same_results(const Batch& other) const {
    return out == other.out && log_sum_exp == other.log_sum_exp && d_qkv == other.d_qkv;
  }

  Floats qkv;          // (T, stride)
  Floats d_out;        // (T, H D)
  Floats out;          // (T, H D)
  Floats log_sum_exp;  // (H, T)
  Floats d_qkv;        // (T, stride)

 private:
  AttentionCase test_;
  std::vector<int32_t> offsets_;
  AttentionShape shape_;
};

/// The definition, in double.
struct Reference {
  explicit Reference(const Batch& batch)
      : out(batch.d_out.size()),
        log_sum_exp(static_cast<size_t>(batch.T() * batch.shape().heads)),
        d_qkv(batch.qkv.size()) {
    for (int64_t document = 0; document < batch.shape().documents; ++document) {
      for (int64_t h = 0; h < batch.shape().heads; ++h) {
        for (int64_t i = batch.shape().offsets[document]; i < batch.shape().offsets[document + 1]; ++i) {
          add_row(batch, batch.shape().offsets[document], h, i);
        }
      }
    }
  }

  /// Everything that row i of a head contributes.
  void add_row(const Batch& batch, int64_t begin, int64_t h, int64_t i) {
    const AttentionShape& shape = batch.shape();
    const int64_t D = shape.head_size;
    const int64_t g = h / (shape.heads / shape.kv_heads);
    const auto q_at = static_cast<size_t>(i * batch.stride() + h * D);
    const auto o_at = static_cast<size_t>(i * batch.width() + h * D);
    const auto k_at = [&](int64_t j) { return static_cast<size_t>(j * batch.stride() + batch.width() + g * D); };
    const auto v_at = [&](int64_t j) { return k_at(j) + static_cast<size_t>(batch.kv_width()); };
    const auto dot = [D](const Floats& x, size_t at_x, const Floats& y, size_t at_y) {
      double sum = 0.0;
      for (size_t e = 0; e < static_cast<size_t>(D); ++e) {
        sum += static_cast<double>(x[at_x + e]) * static_cast<double>(y[at_y + e]);
      }
      return sum;
    };
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));
    Doubles p(static_cast<size_t>(i - begin + 1));
    Doubles dp(p.size());
    for (int64_t j = begin; j <= i; ++j) {
      p[static_cast<size_t>(j - begin)] = scale * dot(batch.qkv, q_at, batch.qkv, k_at(j));
      dp[static_cast<size_t>(j - begin)] = dot(batch.d_out, o_at, batch.qkv, v_at(j));
    }
    const double maximum = *std::max_element(p.begin(), p.end());
    double sum = 0.0;
    for (double& value : p) sum += value = std::exp(value - maximum);
    log_sum_exp[static_cast<size_t>(h * batch.T() + i)] = maximum + std::log(sum);
    for (double& value : p) value /= sum;
    const double mean = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
    for (int64_t j = begin; j <= i; ++j) {
      const double probability = p[static_cast<size_t>(j - begin)];
      const double ds = probability * (dp[static_cast<size_t>(j - begin)] - mean) * scale;
      for (size_t e = 0; e < static_cast<size_t>(D); ++e) {
        out[o_at + e] += probability * static_cast<double>(batch.qkv[v_at(j) + e]);
        d_qkv[v_at(j) + e] += probability * static_cast<double>(batch.d_out[o_at + e]);
        d_qkv[q_at + e] += ds * static_cast<double>(batch.qkv[k_at(j) + e]);
        d_qkv[k_at(j) + e] += ds * static_cast<double>(batch.qkv[q_at + e]);
      }
    }
  }

  Doubles out;
  Doubles log_sum_exp;
  Doubles d_qkv;
};

/// distance() of the columns [begin, end) of rows of `stride`.
inline double column_distance(const Floats& actual, const Doubles& expected, int64_t stride, int64_t begin,
                              int64_t end) {
  Floats some;
  Doubles of_these;
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % stride;
    if (column < begin || column >= end) continue;
    some.push_back(actual[i]);
    of_these.push_back(expected[i]);
  }
  return distance(some, of_these);
}

// Norm-wise bounds with bf16, whose relative rounding error is at most u = 2^-9. out: each probability is rounded, and
// the errors are independent, so that they add up as the terms v P themselves do, to u; out is rounded once more: at
// most 2 u. dv: the probabilities, u. dq and dk: dS is rounded, u; and delta = d_out . out has the error of out, of
// which each dS gets its share P, as it gets that of delta: with |out| <= |v - out| (more than one key matters) another
// 2 u. The sums themselves are fp32. Seen are at most 1.1 u for out, 0.9 u for dv and 1.2 u for dq and dk, the largest
// of all cases.
inline constexpr double kUnit = 1.0 / 512.0;

inline void expect_right(const AttentionCase& test, const Batch& batch, const Reference& expected) {
  SCOPED_TRACE(describe(test));
  const bool bf16 = batch.bf16();
  const int64_t keys = batch.width();
  const int64_t values = keys + batch.kv_width();
  EXPECT_LE(distance(batch.out, expected.out), bf16 ? 2.0 * kUnit : kTolerance);
  EXPECT_LE(distance(batch.log_sum_exp, expected.log_sum_exp), kTolerance);
  const auto error = [&](int64_t begin, int64_t end) {
    return column_distance(batch.d_qkv, expected.d_qkv, batch.stride(), begin, end);
  };
  EXPECT_LE(error(values, batch.stride()), bf16 ? kUnit : 5e-6);
  if (batch.T() == batch.shape().documents) {  // one key each: dq and dk are zero
    EXPECT_LE(distance(batch.d_qkv, expected.d_qkv), bf16 ? 3.0 * kUnit : 5e-6);
    return;
  }
  EXPECT_LE(error(0, keys), bf16 ? 3.0 * kUnit : 5e-6);
  EXPECT_LE(error(keys, values), bf16 ? 3.0 * kUnit : 5e-6);
}

}  // namespace hat::test
