// Attention against its definition in plain double loops, at lengths on both sides of every tile and register block, in
// fp32 and bf16; and what it promises about threads and neighbouring documents, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention_support.hpp"

namespace hat::test {
namespace {

/// Right, and with the same bits on all targets: the results depend neither on threads nor on their order.
void check(const AttentionCase& test) {
  Batch batch(test);
  batch.run(kernel_targets().front());
  expect_right(test, batch, Reference(batch));
  for (const KernelTarget& other : other_targets()) {
    Batch again(test);
    again.run(other);
    EXPECT_TRUE(again.same_results(batch)) << other.name << ", " << describe(test);
  }
}

TEST(Attention, RightAtEveryHeadSizeAndBorder) {
  for (const Element element : kElements) {
    if (is_emulated()) {
      for (const int64_t D : {2, 10, 34, 64, 80, 96, 128, 160, 256}) {
        check({{1, 2, 31, 0, 33, 64}, 2, 1, D, element});
        check({{65, 127}, 1, 1, D, element});
      }
      for (const int64_t D : {8, 64, 128}) check({{200, 1, 129}, 1, 1, D, element});
      continue;
    }
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
    if (is_emulated()) {
      check({{5, 130, 65}, 4, 1, 64, element});
      check({{129, 70}, 6, 2, 10, element});
      check({{66, 3}, 3, 3, 40, element});
      check({{290}, 1, 1, 16, element});
      continue;
    }
    check({{700}, 1, 1, 16, element});
    check({{5, 385, 130}, 8, 1, 64, element});
    check({{300, 97}, 8, 8, 32, element});
    check({{383, 290}, 16, 2, 10, element});
    check({{288, 289}, 3, 1, 96, element});
  }
}

// The running maximum moves, and few keys matter. In fp32: with bf16 the bounds above do not hold for so few keys.
TEST(Attention, RightWhenProbabilitiesAreFarFromUniform) {
  const int32_t longest = is_emulated() ? 150 : 320;
  for (const int64_t D : {2, 32, 128}) check({{1, 64, longest}, 2, 1, D, Element::fp32, 3.0});
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
    batch.run(kernel_targets().back());
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
    AttentionCase test{{33, 200, 1, 97, is_emulated() ? 10 : 390}, 4, 2, 32, element};
    Batch together(test);
    together.run(kernel_targets().back());
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
      alone.run(kernel_targets().front());
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
    batch.run(kernel_targets().front());
    const Floats before = batch.d_qkv;
    batch.qkv[static_cast<size_t>(45 * batch.stride())] = std::numeric_limits<float>::quiet_NaN();
    batch.run(kernel_targets().back());
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
                             .q_stride = 3 * D,
                             .kv_stride = 3 * D};
  const KernelTarget target = kernel_targets().back();
  if (target.speed == Speed::emulated) GTEST_SKIP() << "half an hour in emulation";
  const Stream& stream = target.stream();
  const Operations& ops = *target.operations;
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
