// Every operation against plain double loops, at sizes that fit no vector and no tile.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "../../kernels/cpu/vector_math.hpp"
#include "hat/device/device_buffer.hpp"
#include "kernel_support.hpp"
#include "sketch_hash.hpp"

namespace hat::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Targets, Kernels, testing::ValuesIn(kernel_targets()),
                         [](const auto& target) { return target.param.name; });

TEST(VectorExp, IsAccurateOverItsRange) {
  double worst = 0.0;
  for (int i = -8730000; i <= 8830000; i += 7) {
    const auto x = static_cast<float>(i * 1e-5);
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(cpu::vector_exp(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 1.5e-7);  // about one unit in the last place
  EXPECT_EQ(cpu::vector_exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::vector_exp(-200.0f), 0.0f);
  EXPECT_EQ(cpu::vector_exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_GT(cpu::vector_exp(1000.0f), 1e38f);
  EXPECT_TRUE(std::isnan(cpu::vector_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(DeviceBuffer, IsAlignedMovesAndOnlyGrows) {
  const Device device;
  DeviceBuffer<float> buffer(device, 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kBufferAlignment, 0U);
  buffer.grow(device, 1000);
  EXPECT_EQ(buffer.size(), 1000);
  const float* data = buffer.data();
  buffer.grow(device, 10);
  EXPECT_EQ(buffer.data(), data);
  EXPECT_EQ(buffer.size(), 1000);
  DeviceBuffer<float> moved = std::move(buffer);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.span().size(), 1000U);
  EXPECT_THROW((DeviceBuffer<double>(device, int64_t{1} << 61)), std::runtime_error);
  EXPECT_THROW((DeviceBuffer<double>(device, -1)), std::runtime_error);
}

TEST_P(Kernels, Gemm) {
  for (const auto transpose_a : {Transpose::no, Transpose::yes}) {
    for (const auto transpose_b : {Transpose::no, Transpose::yes}) {
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {7, 13, 5}, {65, 33, 129}, {2, 257, 18}}) {
        const int64_t lda = (transpose_a == Transpose::yes ? m : k) + 3;
        const int64_t ldb = (transpose_b == Transpose::yes ? k : n) + 2;
        const int64_t ldc = n + 5;
        const Floats a = random_values((transpose_a == Transpose::yes ? k : m) * lda, 1);
        const Floats b = random_values((transpose_b == Transpose::yes ? n : k) * ldb, 2);
        for (const float beta : {0.0f, 1.0f}) {
          Floats c = random_values(m * ldc, 3);
          Doubles expected = widen(c);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double sum = 0.0;
              for (int64_t l = 0; l < k; ++l) {
                const float left = a[static_cast<size_t>(transpose_a == Transpose::yes ? l * lda + i : i * lda + l)];
                const float right = b[static_cast<size_t>(transpose_b == Transpose::yes ? j * ldb + l : l * ldb + j)];
                sum += static_cast<double>(left) * static_cast<double>(right);
              }
              double& out = expected[static_cast<size_t>(i * ldc + j)];
              out = 0.5 * sum + static_cast<double>(beta) * out;
              if (beta == 0.0f) c[static_cast<size_t>(i * ldc + j)] = std::numeric_limits<float>::quiet_NaN();
            }
          }
          ops_.gemm(stream_, Element::fp32, transpose_a, transpose_b, m, n, k, 0.5f, a.data(), lda, b.data(), ldb, beta,
                    c.data(), ldc);
          EXPECT_LE(distance(c, expected), kTolerance) << m << " x " << n << " x " << k;
        }
      }
    }
  }
}

TEST_P(Kernels, Embedding) {
  const int64_t T = 9;
  const int64_t C = 37;
  const std::vector<int32_t> tokens = {3, 0, 3, 3, 6, 1, 0, 5, 6};
  const std::vector<int32_t> positions = {0, 1, 2, 3, 0, 1, 0, 1, 2};
  const Floats table = random_values(7 * C, 1);
  const Floats position_table = random_values(4 * C, 2);
  const Floats dy = random_values(T * C, 3);
  for (const bool learned : {false, true}) {
    Floats y(static_cast<size_t>(T * C));
    Floats d_table = random_values(7 * C, 4);
    Floats d_positions = random_values(4 * C, 5);
    Doubles expected(y.size());
    Doubles expected_table = widen(d_table);
    Doubles expected_positions = widen(d_positions);
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (size_t c = 0; c < static_cast<size_t>(C); ++c) {
        const size_t at = t * static_cast<size_t>(C) + c;
        const size_t token = static_cast<size_t>(tokens[t] * C) + c;
        const size_t position = static_cast<size_t>(positions[t] * C) + c;
        expected[at] = static_cast<double>(table[token]);
        if (learned) expected[at] += static_cast<double>(position_table[position]);
        expected_table[token] += static_cast<double>(dy[at]);
        if (learned) expected_positions[position] += static_cast<double>(dy[at]);
      }
    }
    ops_.embedding_forward(stream_, T, C, tokens.data(), positions.data(), table.data(),
                           learned ? position_table.data() : nullptr, y.data());
    ops_.embedding_backward(stream_, T, C, tokens.data(), positions.data(), dy.data(), d_table.data(),
                            learned ? d_positions.data() : nullptr);
    EXPECT_LE(distance(y, expected), kTolerance);
    EXPECT_LE(distance(d_table, expected_table), kTolerance);
    EXPECT_LE(distance(d_positions, expected_positions), kTolerance);
  }
}

/// Norms by definition, in double: forward, and backward by the chain rule through mean and variance.
TEST_P(Kernels, Norms) {
  struct Size {
    int64_t T;
    int64_t C;
  };
  for (const Size& size : {Size{5, 2}, Size{3, 67}, Size{300, 130}}) {
    const int64_t T = size.T;
    const int64_t C = size.C;
    for (const bool layernorm : {false, true}) {
      const Floats x = random_values(T * C, 1, 3.0);
      const Floats weight = random_values(C, 2);
      const Floats bias = random_values(C, 3);
      const Floats dy = random_values(T * C, 4);
      Floats y(x.size());
      Floats mean(static_cast<size_t>(T));
      Floats inverse(static_cast<size_t>(T));
      Floats dx = random_values(T * C, 5);
      Floats d_weight = random_values(C, 6);
      Floats d_bias = random_values(C, 7);
      Doubles expected_y(x.size());
      Doubles expected_dx = widen(dx);
      Doubles expected_weight = widen(d_weight);
      Doubles expected_bias = widen(d_bias);
      const float epsilon = 1e-3f;
      for (int64_t t = 0; t < T; ++t) {
        const auto at = [&](int64_t c) { return static_cast<size_t>(t * C + c); };
        double center = 0.0;
        for (int64_t c = 0; layernorm && c < C; ++c) center += static_cast<double>(x[at(c)]) / static_cast<double>(C);
        double variance = 0.0;
        for (int64_t c = 0; c < C; ++c) {
          const double d = static_cast<double>(x[at(c)]) - center;
          variance += d * d / static_cast<double>(C);
        }
        const double s = std::sqrt(variance + static_cast<double>(epsilon));
        double mean_g = 0.0;
        double mean_gn = 0.0;
        for (int64_t c = 0; c < C; ++c) {
          const double n = (static_cast<double>(x[at(c)]) - center) / s;
          const double g = static_cast<double>(weight[static_cast<size_t>(c)]) * static_cast<double>(dy[at(c)]);
          mean_g += layernorm ? g / static_cast<double>(C) : 0.0;
          mean_gn += g * n / static_cast<double>(C);
          expected_y[at(c)] = n * static_cast<double>(weight[static_cast<size_t>(c)]) +
                              (layernorm ? static_cast<double>(bias[static_cast<size_t>(c)]) : 0.0);
          expected_weight[static_cast<size_t>(c)] += static_cast<double>(dy[at(c)]) * n;
          if (layernorm) expected_bias[static_cast<size_t>(c)] += static_cast<double>(dy[at(c)]);
        }
        for (int64_t c = 0; c < C; ++c) {
          const double n = (static_cast<double>(x[at(c)]) - center) / s;
          const double g = static_cast<double>(weight[static_cast<size_t>(c)]) * static_cast<double>(dy[at(c)]);
          expected_dx[at(c)] += (g - mean_g - n * mean_gn) / s;
        }
      }
      if (layernorm) {
        ops_.layernorm_forward(stream_, T, C, epsilon, x.data(), weight.data(), bias.data(), y.data(), mean.data(),
                               inverse.data());
        ops_.layernorm_backward(stream_, T, C, x.data(), weight.data(), mean.data(), inverse.data(), dy.data(),
                                dx.data(), d_weight.data(), d_bias.data());
      } else {
        ops_.rmsnorm_forward(stream_, T, C, epsilon, x.data(), weight.data(), y.data(), inverse.data());
        ops_.rmsnorm_backward(stream_, T, C, x.data(), weight.data(), inverse.data(), dy.data(), dx.data(),
                              d_weight.data());
      }
      EXPECT_LE(distance(y, expected_y), kTolerance) << T << " x " << C;
      EXPECT_LE(distance(dx, expected_dx), kTolerance) << T << " x " << C;
      EXPECT_LE(distance(d_weight, expected_weight), kTolerance) << T << " x " << C;
      EXPECT_LE(distance(d_bias, expected_bias), kTolerance) << T << " x " << C;
    }
  }
}

/// Stored as `element` and read back.
Floats stored(const Floats& values, Element element) {
  Floats result = values;
  for (float& value : result) value = element == Element::fp32 ? value : to_float(to_bfloat16(value));
  return result;
}

/// An array of either element type.
class Stored {
 public:
  Stored(int64_t count, Element element)
      : element_(element), floats_(static_cast<size_t>(count)), halves_(static_cast<size_t>(count)) {}
  explicit Stored(const Floats& values, Element element) : Stored(static_cast<int64_t>(values.size()), element) {
    for (size_t i = 0; i < values.size(); ++i) {
      floats_[i] = values[i];
      halves_[i] = to_bfloat16(values[i]);
    }
  }
  Values values() { return element_ == Element::fp32 ? Values(floats_.data()) : Values(halves_.data()); }
  Floats read() const {
    Floats result = floats_;
    for (size_t i = 0; element_ == Element::bf16 && i < result.size(); ++i) result[i] = to_float(halves_[i]);
    return result;
  }

 private:
  Element element_;
  Floats floats_;
  std::vector<bfloat16> halves_;
};

double tolerance(Element element) { return element == Element::fp32 ? kTolerance : 1.0 / 256; }

TEST_P(Kernels, GemmInBf16) {
  for (const auto transpose_a : {Transpose::no, Transpose::yes}) {
    for (const auto transpose_b : {Transpose::no, Transpose::yes}) {
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                    {7, 13, 5},
                                    {65, 33, 129},
                                    {2, 257, 18},
                                    {14, 32, 512},
                                    {449, 17, 513},
                                    {28, 2049, 37},
                                    {13, 33, 31},
                                    {433, 4097, 3},
                                    {15, 48, 1025}}) {
        const int64_t lda = (transpose_a == Transpose::yes ? m : k) + 3;
        const int64_t ldb = (transpose_b == Transpose::yes ? k : n) + 2;
        const int64_t ldc = n + 5;
        const Floats a = random_values((transpose_a == Transpose::yes ? k : m) * lda, 1);
        const Floats b = random_values((transpose_b == Transpose::yes ? n : k) * ldb, 2);
        const Floats left = stored(a, Element::bf16);
        const Floats right = stored(b, Element::bf16);
        for (const float beta : {0.0f, 1.0f}) {
          const Floats start = random_values(m * ldc, 3);
          Doubles expected = widen(start);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double sum = 0.0;
              for (int64_t l = 0; l < k; ++l) {
                sum += static_cast<double>(
                           left[static_cast<size_t>(transpose_a == Transpose::yes ? l * lda + i : i * lda + l)]) *
                       static_cast<double>(
                           right[static_cast<size_t>(transpose_b == Transpose::yes ? j * ldb + l : l * ldb + j)]);
              }
              double& out = expected[static_cast<size_t>(i * ldc + j)];
              out = 0.5 * sum + static_cast<double>(beta) * out;
            }
          }
          // Operands stored in fp32 are rounded, so all four combinations give the same bits.
          Floats first;
          for (const auto a_element : {Element::fp32, Element::bf16}) {
            for (const auto b_element : {Element::fp32, Element::bf16}) {
              Floats c = start;
              if (beta == 0.0f) {
                for (int64_t i = 0; i < m; ++i)
                  std::fill_n(c.begin() + i * ldc, n, std::numeric_limits<float>::quiet_NaN());
              }
              Stored stored_a(a, a_element);
              Stored stored_b(b, b_element);
              ops_.gemm(stream_, Element::bf16, transpose_a, transpose_b, m, n, k, 0.5f, stored_a.values(), lda,
                        stored_b.values(), ldb, beta, c.data(), ldc);
              EXPECT_LE(distance(c, expected), kTolerance) << m << " x " << n << " x " << k;
              if (first.empty()) first = c;
              EXPECT_EQ(c, first) << m << " x " << n << " x " << k;
            }
          }
        }
      }
    }
  }
}

TEST_P(Kernels, Rope) {
  const int64_t heads = 3;
  for (const int64_t D : {2, 6, 64}) {
    const int64_t N = (heads + 2) * D;
    const std::vector<int32_t> positions = {0, 1, 2, 999, 0, 1};
    const auto T = static_cast<int64_t>(positions.size());
    Floats cosine(static_cast<size_t>(1000 * D / 2));
    Floats sine(cosine.size());
    ops_.rope_table(stream_, 1000, D, 10000.0, cosine.data(), sine.data());
    const Floats x = random_values(T * N, 1);
    const Floats bias = random_values(N, 2);
    for (const bool biased : {false, true}) {
      for (const bool rotated : {false, true}) {
        Doubles sum = widen(x);
        for (size_t i = 0; biased && i < sum.size(); ++i)
          sum[i] += static_cast<double>(bias[i % static_cast<size_t>(N)]);
        Doubles expected = sum;
        for (int64_t t = 0; rotated && t < T; ++t) {
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t i = 0; i < D / 2; ++i) {
              const double angle = positions[static_cast<size_t>(t)] *
                                   std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(D));
              const auto low = static_cast<size_t>(t * N + h * D + i);
              const size_t high = low + static_cast<size_t>(D / 2);
              expected[low] = sum[low] * std::cos(angle) - sum[high] * std::sin(angle);
              expected[high] = sum[high] * std::cos(angle) + sum[low] * std::sin(angle);
            }
          }
        }
        const float* c = rotated ? cosine.data() : nullptr;
        const float* b = biased ? bias.data() : nullptr;
        for (const Element element : {Element::fp32, Element::bf16}) {
          Stored y(T * N, element);
          ops_.rope_forward(stream_, T, N, heads, D, positions.data(), c, sine.data(), b, x.data(), y.values());
          EXPECT_LE(distance(y.read(), expected), tolerance(element)) << D;
        }
        Floats y = x;
        ops_.rope_forward(stream_, T, N, heads, D, positions.data(), c, sine.data(), b, y.data(), y.data());
        EXPECT_LE(distance(y, expected), kTolerance) << D;
        if (!rotated) continue;
        ops_.rope_backward(stream_, T, N, heads, D, positions.data(), c, sine.data(), y.data());
        EXPECT_LE(distance(y, sum), kTolerance) << D;  // a rotation's transpose is its inverse
      }
    }
  }
}

TEST_P(Kernels, Swiglu) {
  const int64_t T = 11;
  const int64_t F = 37;
  const Floats x = random_values(T * 2 * F, 1, 6.0);
  const Floats dy = random_values(T * F, 2);
  for (const Element element : {Element::fp32, Element::bf16}) {
    const Floats gate_up = stored(x, element);
    Doubles expected_y(dy.size());
    Doubles expected_gradient(gate_up.size());
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t f = 0; f < F; ++f) {
        const auto gate_at = static_cast<size_t>(t * 2 * F + f);
        const size_t up_at = gate_at + static_cast<size_t>(F);
        const auto at = static_cast<size_t>(t * F + f);
        const double gate = static_cast<double>(gate_up[gate_at]);
        const double up = static_cast<double>(gate_up[up_at]);
        const double s = 1.0 / (1.0 + std::exp(-gate));
        expected_y[at] = gate * s * up;
        expected_gradient[gate_at] = static_cast<double>(dy[at]) * up * (s + gate * s * (1.0 - s));
        expected_gradient[up_at] = static_cast<double>(dy[at]) * gate * s;
      }
    }
    Stored kept(T * 2 * F, element);
    Floats y(dy.size());
    Floats again(dy.size());
    Floats unkept(dy.size());
    Floats gradient(gate_up.size());
    ops_.swiglu_forward(stream_, T, F, x.data(), kept.values(), y.data());
    ops_.swiglu_forward(stream_, T, F, x.data(), Values(nullptr, element), unkept.data());
    ops_.swiglu_backward(stream_, T, F, kept.values(), dy.data(), gradient.data(), again.data());
    EXPECT_EQ(kept.read(), gate_up);
    EXPECT_LE(distance(y, expected_y), kTolerance);
    EXPECT_EQ(again, y);
    EXPECT_EQ(unkept, y);
    EXPECT_LE(distance(gradient, expected_gradient), kTolerance);
    if (element == Element::bf16) continue;
    Floats in_place = x;
    Floats both = dy;
    ops_.swiglu_forward(stream_, T, F, in_place.data(), in_place.data(), unkept.data());
    ops_.swiglu_backward(stream_, T, F, in_place.data(), both.data(), in_place.data(), both.data());
    EXPECT_EQ(in_place, gradient);
    EXPECT_EQ(both, y);
  }
}

TEST_P(Kernels, Gelu) {
  const int64_t T = 17;
  const int64_t F = 59;
  const Floats x = random_values(T * F, 1, 6.0);
  const Floats bias = random_values(F, 3);
  const Floats dy = random_values(T * F, 2);
  for (const Element element : {Element::fp32, Element::bf16}) {
    Floats up = x;
    for (size_t i = 0; i < up.size(); ++i) up[i] += bias[i % static_cast<size_t>(F)];
    up = stored(up, element);
    Doubles expected_y(x.size());
    Doubles expected_gradient(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(up[i]);
      const double root = std::sqrt(2.0 / std::acos(-1.0));
      const double tanh = std::tanh(root * (v + 0.044715 * v * v * v));
      const double slope = root * (1.0 + 3.0 * 0.044715 * v * v);
      expected_y[i] = 0.5 * v * (1.0 + tanh);
      expected_gradient[i] = static_cast<double>(dy[i]) * (0.5 * (1.0 + tanh) + 0.5 * v * (1.0 - tanh * tanh) * slope);
    }
    Stored kept(T * F, element);
    Floats y(x.size());
    Floats again(x.size());
    Floats unkept(x.size());
    Floats gradient(x.size());
    ops_.gelu_forward(stream_, T, F, x.data(), bias.data(), kept.values(), y.data());
    ops_.gelu_forward(stream_, T, F, x.data(), bias.data(), Values(nullptr, element), unkept.data());
    ops_.gelu_backward(stream_, T, F, kept.values(), dy.data(), gradient.data(), again.data());
    EXPECT_EQ(kept.read(), up);
    EXPECT_LE(distance(y, expected_y), kTolerance);
    EXPECT_EQ(again, y);
    EXPECT_EQ(unkept, y);
    EXPECT_LE(distance(gradient, expected_gradient), kTolerance);
  }
}

TEST_P(Kernels, BiasAndResidual) {
  const int64_t T = 301;
  const int64_t N = 131;
  const Floats x = random_values(T * N, 5);
  const Floats bias = random_values(N, 1);
  const Floats dy = random_values(T * N, 2);
  const Floats start = random_values(T * N, 3);
  Floats d_bias = random_values(N, 4);
  Doubles expected_bias = widen(d_bias);
  for (const bool biased : {false, true}) {
    Doubles expected = widen(start);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += static_cast<double>(x[i]);
      if (biased) expected[i] += static_cast<double>(bias[i % static_cast<size_t>(N)]);
    }
    Floats y = start;
    ops_.residual_forward(stream_, T, N, x.data(), biased ? bias.data() : nullptr, y.data());
    EXPECT_LE(distance(y, expected), kTolerance);
  }
  for (size_t i = 0; i < dy.size(); ++i) expected_bias[i % static_cast<size_t>(N)] += static_cast<double>(dy[i]);
  ops_.bias_backward(stream_, T, N, dy.data(), d_bias.data());
  EXPECT_LE(distance(d_bias, expected_bias), kTolerance);
}

TEST_P(Kernels, CrossEntropy) {
  for (const int64_t V : {2, 61, 257, 50257}) {
    const int64_t T = 5;
    const int64_t stride = V + 3;
    const std::vector<int32_t> targets = {0, static_cast<int32_t>(V) - 1, -1, 1, 0};
    const Floats logits = random_values(T * stride, 1, 20.0);
    Doubles expected = widen(logits);
    Doubles expected_nats(targets.size());
    for (int64_t t = 0; t < T; ++t) {
      double sum = 0.0;
      const auto at = [&](int64_t i) { return static_cast<size_t>(t * stride + i); };
      for (int64_t i = 0; i < V; ++i) sum += std::exp(static_cast<double>(logits[at(i)]));
      const int64_t target = targets[static_cast<size_t>(t)];
      for (int64_t i = 0; i < V; ++i) {
        const double probability = std::exp(static_cast<double>(logits[at(i)])) / sum;
        expected[at(i)] = target < 0 ? 0.0 : probability - (i == target ? 1.0 : 0.0);
        if (i == target) expected_nats[static_cast<size_t>(t)] = -std::log(probability);
      }
    }
    for (const auto output : {CrossEntropyOutput::loss, CrossEntropyOutput::loss_and_gradient}) {
      Floats work = logits;
      std::vector<double> nats(targets.size(), -1.0);
      ops_.cross_entropy(stream_, output, T, V, stride, targets.data(), work.data(), nats.data());
      for (size_t t = 0; t < nats.size(); ++t) EXPECT_NEAR(nats[t], expected_nats[t], 1e-6 * (1.0 + nats[t])) << V;
      if (output == CrossEntropyOutput::loss_and_gradient) {
        EXPECT_LE(distance(work, expected), kTolerance) << V;
      }
    }
  }
}

TEST_P(Kernels, Elementwise) {
  const int64_t n = 1003;
  const Floats x = random_values(n, 1);
  const Floats y = random_values(n, 2);
  Doubles scaled(x.size());
  double squares = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double a = static_cast<double>(x[i]);
    const double b = static_cast<double>(y[i]);
    scaled[i] = 0.25 * b;
    squares += a * a;
  }
  Floats work = y;
  ops_.scale(stream_, n, 0.25f, work.data());
  EXPECT_LE(distance(work, scaled), kTolerance);
  ops_.fill(stream_, n, 2.5f, work.data());
  EXPECT_EQ(work, Floats(x.size(), 2.5f));
  double sum = -1.0;
  ops_.sum_of_squares(stream_, n, x.data(), &sum);
  EXPECT_NEAR(sum, squares, 1e-12 * squares);
}

TEST_P(Kernels, CountSketch) {
  for (const int64_t n : {1, 31, 1024, 5000, 300'001}) {
    const Floats x = random_values(n, 21);
    Doubles expected(static_cast<size_t>(kSketchBuckets));
    double expected_squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(x[static_cast<size_t>(i)]);
      const bool minus = (sketch_signs(i / kSketchWord) >> (i % kSketchWord) & 1U) != 0;
      const int64_t bucket = (i + sketch_rotation(i / kSketchBuckets)) % kSketchBuckets;
      expected[static_cast<size_t>(bucket)] += minus ? -value : value;
      expected_squares += value * value;
    }
    Floats sketch(static_cast<size_t>(kSketchBuckets), std::nanf(""));
    double squares = 0;
    ops_.count_sketch(stream_, n, x.data(), sketch.data(), &squares);
    EXPECT_LE(distance(sketch, expected), kTolerance) << n;
    EXPECT_NEAR(squares, expected_squares, 1e-12 * expected_squares) << n;
    double alone = 0;
    ops_.sum_of_squares(stream_, n, x.data(), &alone);
    EXPECT_NEAR(alone, expected_squares, 1e-12 * expected_squares) << n;
  }
}

}  // namespace
}  // namespace hat::test
