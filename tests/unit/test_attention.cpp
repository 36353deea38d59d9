// Attention against its definition in plain double loops, at lengths on both sides of every tile border.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernel_support.hpp"

namespace hat::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Threads, Kernels, testing::Values(1, 3));

struct AttentionCase {
  std::vector<int32_t> lengths;
  int64_t heads;
  int64_t kv_heads;
  int64_t D;
};

/// Attention of one head by its definition, forward and backward, in double.
struct NaiveHead {
  std::function<double(int64_t, int64_t)> q, k, v, d_out;         // (row, element)
  std::function<void(int64_t, int64_t, double)> out, dq, dk, dv;  // add to (row, element)
};

void naive_attention(int64_t length, int64_t D, const NaiveHead& head) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(D));
  Doubles p(static_cast<size_t>(length));
  Doubles dp(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j <= i; ++j) {
      double score = 0.0;
      double d = 0.0;
      for (int64_t e = 0; e < D; ++e) {
        score += head.q(i, e) * head.k(j, e);
        d += head.d_out(i, e) * head.v(j, e);
      }
      p[static_cast<size_t>(j)] = score * scale;
      dp[static_cast<size_t>(j)] = d;
      maximum = std::max(maximum, score * scale);
    }
    double sum = 0.0;
    double mean = 0.0;
    for (int64_t j = 0; j <= i; ++j) sum += std::exp(p[static_cast<size_t>(j)] - maximum);
    for (int64_t j = 0; j <= i; ++j) {
      double& value = p[static_cast<size_t>(j)];
      value = std::exp(value - maximum) / sum;
      mean += value * dp[static_cast<size_t>(j)];
    }
    for (int64_t j = 0; j <= i; ++j) {
      const double probability = p[static_cast<size_t>(j)];
      const double ds = probability * (dp[static_cast<size_t>(j)] - mean) * scale;
      for (int64_t e = 0; e < D; ++e) {
        head.out(i, e, probability * head.v(j, e));
        head.dv(j, e, probability * head.d_out(i, e));
        head.dq(i, e, ds * head.k(j, e));
        head.dk(j, e, ds * head.q(i, e));
      }
    }
  }
}

TEST_P(Kernels, Attention) {
  const AttentionCase cases[] = {
      {{1}, 1, 1, 2},
      {{1, 2, 3, 63, 64, 65}, 4, 2, 6},
      {{255, 1, 256, 257}, 2, 2, 32},
      {{320, 0, 321}, 3, 1, 10},
      {{130, 5}, 2, 1, 256},
      {{700}, 1, 1, 16},
  };
  for (const AttentionCase& test : cases) {
    const int64_t D = test.D;
    const int64_t width = test.heads * D;
    const int64_t kv_width = test.kv_heads * D;
    const int64_t stride = width + 2 * kv_width;
    std::vector<int32_t> offsets = {0};
    for (const int32_t length : test.lengths) offsets.push_back(offsets.back() + length);
    const int64_t T = offsets.back();
    const AttentionShape shape{.tokens = T,
                               .documents = static_cast<int64_t>(test.lengths.size()),
                               .offsets = offsets.data(),
                               .heads = test.heads,
                               .kv_heads = test.kv_heads,
                               .head_size = D,
                               .qkv_stride = stride};
    // Large values, so that softmax is far from uniform and the running maximum moves.
    const Floats qkv = random_values(T * stride, 1, 3.0);
    const Floats d_out = random_values(T * width, 2);
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    Floats out(static_cast<size_t>(T * width), nan);
    Floats log_sum_exp(static_cast<size_t>(T * test.heads), nan);
    Floats d_qkv(qkv.size(), nan);
    Floats workspace(static_cast<size_t>(ops_.attention_workspace(stream_, shape)), nan);

    Doubles expected_out(out.size());
    Doubles expected_qkv(qkv.size());
    for (size_t document = 0; document < test.lengths.size(); ++document) {
      const int64_t begin = offsets[document];
      for (int64_t h = 0; h < test.heads; ++h) {
        const int64_t g = h / (test.heads / test.kv_heads);
        const auto q_at = [=](int64_t t, int64_t e) { return static_cast<size_t>((begin + t) * stride + h * D + e); };
        const auto k_at = [=](int64_t t, int64_t e) {
          return static_cast<size_t>((begin + t) * stride + width + g * D + e);
        };
        const auto v_at = [=](int64_t t, int64_t e) { return k_at(t, e) + static_cast<size_t>(kv_width); };
        const auto o_at = [=](int64_t t, int64_t e) { return static_cast<size_t>((begin + t) * width + h * D + e); };
        NaiveHead head;
        head.q = [&](int64_t t, int64_t e) { return static_cast<double>(qkv[q_at(t, e)]); };
        head.k = [&](int64_t t, int64_t e) { return static_cast<double>(qkv[k_at(t, e)]); };
        head.v = [&](int64_t t, int64_t e) { return static_cast<double>(qkv[v_at(t, e)]); };
        head.d_out = [&](int64_t t, int64_t e) { return static_cast<double>(d_out[o_at(t, e)]); };
        head.out = [&](int64_t t, int64_t e, double value) { expected_out[o_at(t, e)] += value; };
        head.dq = [&](int64_t t, int64_t e, double value) { expected_qkv[q_at(t, e)] += value; };
        head.dk = [&](int64_t t, int64_t e, double value) { expected_qkv[k_at(t, e)] += value; };
        head.dv = [&](int64_t t, int64_t e, double value) { expected_qkv[v_at(t, e)] += value; };
        naive_attention(test.lengths[document], D, head);
      }
    }
    ops_.attention_forward(stream_, shape, qkv.data(), qkv.data() + width, qkv.data() + width + kv_width, out.data(),
                           log_sum_exp.data(), workspace.data());
    EXPECT_LE(distance(out, expected_out), kTolerance) << "head size " << D << ", " << T << " tokens";
    ops_.attention_backward(stream_, shape, qkv.data(), qkv.data() + width, qkv.data() + width + kv_width, out.data(),
                            log_sum_exp.data(), d_out.data(), d_qkv.data(), d_qkv.data() + width,
                            d_qkv.data() + width + kv_width, workspace.data());
    EXPECT_LE(distance(d_qkv, expected_qkv), 5e-6) << "head size " << D << ", " << T << " tokens";
  }
}

}  // namespace
}  // namespace hat::test
