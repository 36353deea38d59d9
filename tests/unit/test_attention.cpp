// Attention against its definition in plain double loops, at lengths on both sides of every tile and register block, in
// fp32 and bf16; and what it promises about threads and neighbouring documents, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "hat/core/bfloat16.hpp"
#include "kernel_support.hpp"

namespace hat::test {
namespace {

struct AttentionCase {
  std::vector<int32_t> lengths;
  int64_t heads;
  int64_t kv_heads;
  int64_t D;
  Element element = Element::fp32;
  double amplitude = 1.0;  ///< of q and k: far from uniform probabilities need more than 1
};

std::string describe(const AttentionCase& test) {
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
              .qkv_stride = (test.heads + 2 * test.kv_heads) * test.D};
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

  void run(int threads) {
    const Stream stream(Device{.kind = DeviceKind::cpu, .index = 0, .threads = threads});
    const Operations& ops = operations(DeviceKind::cpu);
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
  int64_t stride() const { return shape_.qkv_stride; }
  bool bf16() const { return test_.element == Element::bf16; }
  const AttentionShape& shape() const { return shape_; }

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
double column_distance(const Floats& actual, const Doubles& expected, int64_t stride, int64_t begin, int64_t end) {
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
constexpr double kUnit = 1.0 / 512.0;

void expect_right(const AttentionCase& test, const Batch& batch, const Reference& expected) {
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

/// Right with one thread, and the same bits with two and three.
void check(const AttentionCase& test) {
  Batch batch(test);
  batch.run(1);
  expect_right(test, batch, Reference(batch));
  const Floats out = batch.out;
  const Floats log_sum_exp = batch.log_sum_exp;
  const Floats d_qkv = batch.d_qkv;
  for (const int threads : {2, 3}) {
    batch.run(threads);
    EXPECT_TRUE(batch.out == out && batch.log_sum_exp == log_sum_exp && batch.d_qkv == d_qkv)
        << threads << " threads, " << describe(test);
  }
}

constexpr Element kElements[] = {Element::fp32, Element::bf16};

TEST(Attention, RightAtEveryHeadSizeAndBorder) {
  for (const Element element : kElements) {
    for (const int64_t D : {2, 6, 32, 64, 80, 128, 256}) {
      check({{1}, 1, 1, D, element});
      check({{1, 2, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49}, 2, 2, D, element});
      check({{95, 0, 96, 97, 1}, 4, 1, D, element});
      check({{191, 192, 193}, 2, 1, D, element});
    }
  }
}

TEST(Attention, RightWithGroupsOfHeadsAndLongDocuments) {
  for (const Element element : kElements) {
    check({{700}, 1, 1, 16, element});
    check({{5, 385, 130}, 8, 1, 64, element});
    check({{300, 97}, 8, 8, 32, element});
    check({{383, 290}, 16, 2, 10, element});
    check({{288, 289}, 3, 1, 96, element});
  }
}

// The running maximum moves, and few keys matter. In fp32: with bf16 the bounds above do not hold for so few keys.
TEST(Attention, RightWhenProbabilitiesAreFarFromUniform) {
  for (const int64_t D : {2, 32, 128}) check({{1, 64, 320}, 2, 1, D, Element::fp32, 3.0});
}

// Scores of thousands, whose exponentials overflow unless they are shifted. q and k are multiples of 32, so that the
// scores are exact and the shift is all that can go wrong. log_sum_exp is fp32, so the probabilities of the backward
// pass have its rounding error (and that of the factor log2 e) times its size.
TEST(Attention, LargeScoresDoNotOverflow) {
  for (const Element element : kElements) {
    const AttentionCase test{{130, 40}, 2, 1, 64, element};
    Batch batch(test);
    for (int64_t i = 0; i < batch.T() * batch.stride(); ++i) {
      float& x = batch.qkv[static_cast<size_t>(i)];
      if (i % batch.stride() < batch.width() + batch.kv_width()) x = 32.0f * std::round(3.0f * x);
    }
    batch.run(2);
    const Reference expected(batch);
    const double largest = *std::max_element(expected.log_sum_exp.begin(), expected.log_sum_exp.end());
    ASSERT_GT(largest, 1000.0);
    const bool bf16 = element == Element::bf16;
    EXPECT_LE(distance(batch.out, expected.out), bf16 ? 2.0 * kUnit : kTolerance);
    EXPECT_LE(distance(batch.log_sum_exp, expected.log_sum_exp), kTolerance);
    EXPECT_LE(
        column_distance(batch.d_qkv, expected.d_qkv, batch.stride(), batch.width() + batch.kv_width(), batch.stride()),
        (bf16 ? kUnit : 5e-6) + largest * std::pow(2.0, -23));
    EXPECT_TRUE(std::all_of(batch.d_qkv.begin(), batch.d_qkv.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST(Attention, ADocumentIsTheSameAloneAndInABatch) {
  for (const Element element : kElements) {
    AttentionCase test{{33, 200, 1, 97, 390}, 4, 2, 32, element};
    Batch together(test);
    together.run(2);
    const std::vector<int32_t> lengths = test.lengths;
    int64_t begin = 0;
    for (const int32_t length : lengths) {
      test.lengths = {length};
      Batch alone(test);
      const auto cut = [&](const Floats& x, int64_t stride) {
        return Floats(x.begin() + begin * stride, x.begin() + (begin + length) * stride);
      };
      alone.qkv = cut(together.qkv, together.stride());
      alone.d_out = cut(together.d_out, together.width());
      alone.run(1);
      EXPECT_EQ(alone.out, cut(together.out, together.width())) << length << " tokens";
      EXPECT_EQ(alone.d_qkv, cut(together.d_qkv, together.stride())) << length << " tokens";
      begin += length;
    }
  }
}

// NaN in one document reaches no other, and does not vanish in its own.
TEST(Attention, NanStaysInItsDocument) {
  for (const Element element : kElements) {
    Batch batch({{40, 100, 30}, 1, 1, 32, element});
    batch.run(1);
    const Floats before = batch.d_qkv;
    batch.qkv[static_cast<size_t>(45 * batch.stride())] = std::numeric_limits<float>::quiet_NaN();
    batch.run(2);
    for (int64_t t = 0; t < batch.T(); ++t) {
      const auto at = [&](const Floats& x) { return x.begin() + t * batch.stride(); };
      const bool same = std::equal(at(batch.d_qkv), at(batch.d_qkv) + batch.stride(), at(before));
      const bool other = t < 40 || t >= 140;
      EXPECT_TRUE(same || !other) << "token " << t;
    }
    EXPECT_TRUE(std::isnan(batch.out[static_cast<size_t>(45 * batch.width())]));
    EXPECT_TRUE(std::isnan(batch.d_qkv[static_cast<size_t>(45 * batch.stride())]));
  }
}

// Some rows of a forward pass whose score matrix would have more than 2^31 elements.
TEST(Attention, LongDocument) {
  constexpr int32_t kTokens = 47104;
  constexpr int64_t D = 32;
  const int32_t offsets[] = {0, kTokens};
  const AttentionShape shape{.tokens = kTokens,
                             .documents = 1,
                             .offsets = offsets,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_size = D,
                             .qkv_stride = 3 * D};
  const Stream stream(Device{.kind = DeviceKind::cpu, .index = 0, .threads = 2});
  const Operations& ops = operations(DeviceKind::cpu);
  Floats qkv = random_values(kTokens * 3 * D, 1, 2.0);
  for (size_t i = 0; i < qkv.size(); ++i) {
    if (i % (3 * D) >= 2 * D) qkv[i] += 2.0f;  // else thousands of values cancel, and with them the result's digits
  }
  Floats out(static_cast<size_t>(kTokens * D));
  Floats log_sum_exp(kTokens);
  Floats workspace(static_cast<size_t>(ops.attention_workspace(stream, shape)));
  EXPECT_LT(workspace.size(), qkv.size());
  ops.attention_forward(stream, shape, qkv.data(), qkv.data() + D, qkv.data() + 2 * D, out.data(), log_sum_exp.data(),
                        workspace.data());
  for (const int64_t i : {0, 96, 32767, 46342, 47103}) {
    Doubles expected(D);
    double sum = 0.0;
    for (int64_t j = 0; j <= i; ++j) {
      double score = 0.0;
      for (int64_t e = 0; e < D; ++e) {
        score += static_cast<double>(qkv[static_cast<size_t>(i * 3 * D + e)]) *
                 static_cast<double>(qkv[static_cast<size_t>(j * 3 * D + D + e)]);
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(D)));  // scores are small here
      sum += weight;
      for (int64_t e = 0; e < D; ++e) {
        expected[static_cast<size_t>(e)] +=
            weight * static_cast<double>(qkv[static_cast<size_t>(j * 3 * D + 2 * D + e)]);
      }
    }
    for (double& x : expected) x /= sum;
    const Floats row(out.begin() + i * D, out.begin() + (i + 1) * D);
    EXPECT_LE(distance(row, expected), 1e-5) << "row " << i;
    EXPECT_NEAR(log_sum_exp[static_cast<size_t>(i)], std::log(sum), 1e-5) << "row " << i;
  }
}

}  // namespace
}  // namespace hat::test
