#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hat/optimizer/optimizer.hpp"
#include "model_support.hpp"

namespace hat {
namespace {

constexpr LearningRates kRates{.base = 3e-3, .muon = 0.02};
constexpr double kScale = 0.25;

OptimizerConfig config_of(OptimizerKind kind) {
  OptimizerConfig config;
  config.kind = kind;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.epsilon = 1e-8;
  config.momentum = 0.95;
  config.weight_decay = 0.1;
  return config;
}

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_normal(17, stream, i));
  return values;
}

enum class Place { apart, same };  // where new values go

/// Updates of a whole part, one after the other; update `u` has the gradient random_values(count, u) from `begin` on.
std::vector<float> after_updates(const OptimizerConfig& config, const ModelLayout& layout, const Part& part,
                                 int64_t updates, std::vector<std::vector<OptimizerState>>* states = nullptr,
                                 Place place = Place::apart) {
  const int64_t block_size = layout.blocks[static_cast<size_t>(part.block)].size;
  std::vector<float> values = random_values(block_size, 1000);
  values = {values.begin() + part.begin, values.begin() + part.begin + part.count};
  Optimizer optimizer(config, layout, part);
  for (int64_t u = 0; u < updates; ++u) {
    std::vector<float> gradient = random_values(block_size, static_cast<uint64_t>(u));
    gradient = {gradient.begin() + part.begin, gradient.begin() + part.begin + part.count};
    std::vector<float> updated(values.size(), NAN);
    float* new_values = place == Place::same ? values.data() : updated.data();
    for (int64_t piece = 0; piece < optimizer.pieces(); ++piece) {
      optimizer.update(piece, u, kRates, kScale, gradient.data(), values.data(), new_values);
    }
    if (place == Place::apart) values = updated;
  }
  for (int64_t piece = 0; states != nullptr && piece < optimizer.pieces(); ++piece) {
    states->push_back(optimizer.state(piece));
  }
  return values;
}

Part whole_block(const ModelLayout& layout, int64_t block) {
  return {.block = block, .begin = 0, .count = layout.blocks[static_cast<size_t>(block)].size, .server = 0};
}

/// The formulas of optimizer.hpp in double precision, for one element with its gradients in order.
double adamw_by_hand(const OptimizerConfig& c, double w, bool decays, const std::vector<double>& gradients) {
  double m = 0;
  double v = 0;
  for (size_t t = 1; t <= gradients.size(); ++t) {
    const double g = gradients[t - 1] * kScale;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(c.beta1, static_cast<double>(t)));
    const double v_hat = v / (1 - std::pow(c.beta2, static_cast<double>(t)));
    const double decay = decays ? kRates.base * c.weight_decay * w : 0.0;
    w = w - kRates.base * m_hat / (std::sqrt(v_hat) + c.epsilon) - decay;
  }
  return w;
}

double sgd_by_hand(const OptimizerConfig& c, double w, bool decays, const std::vector<double>& gradients) {
  double m = 0;
  for (const double gradient : gradients) {
    m = c.momentum * m + gradient * kScale;
    w = w - kRates.base * m - (decays ? kRates.base * c.weight_decay * w : 0.0);
  }
  return w;
}

using ByHand = double (*)(const OptimizerConfig&, double, bool, const std::vector<double>&);

/// Checks all elements of `tensors` of the block after `updates` updates.
void expect_by_hand(const OptimizerConfig& config, const ModelLayout& layout, int64_t block, bool hidden_too,
                    ByHand by_hand) {
  constexpr int64_t kUpdates = 12;
  const BlockSpec& spec = layout.blocks[static_cast<size_t>(block)];
  const std::vector<float> values = after_updates(config, layout, whole_block(layout, block), kUpdates);
  const std::vector<float> start = random_values(spec.size, 1000);
  std::vector<std::vector<float>> gradients;
  for (uint64_t u = 0; u < kUpdates; ++u) gradients.push_back(random_values(spec.size, u));
  int64_t checked = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.orthogonal && !hidden_too) continue;
    for (auto i = static_cast<size_t>(tensor.offset); i < static_cast<size_t>(tensor.offset + tensor.size()); ++i) {
      std::vector<double> own;
      for (const std::vector<float>& gradient : gradients) own.push_back(gradient[i]);
      ASSERT_NEAR(values[i], by_hand(config, start[i], tensor.decay, own), 2e-6) << spec.name << "." << tensor.name;
      ++checked;
    }
  }
  EXPECT_GT(checked, 0);
}

TEST(Optimizer, AdamwIsItsFormula) {
  const ModelLayout layout = make_layout(test::small_gpt2());
  for (int64_t block = 0; block < static_cast<int64_t>(layout.blocks.size()); ++block) {
    expect_by_hand(config_of(OptimizerKind::adamw), layout, block, /*hidden_too=*/true, adamw_by_hand);
  }
}

TEST(Optimizer, SgdIsItsFormula) {
  const ModelLayout layout = make_layout(test::small_gpt2());
  for (int64_t block = 0; block < static_cast<int64_t>(layout.blocks.size()); ++block) {
    expect_by_hand(config_of(OptimizerKind::sgd), layout, block, /*hidden_too=*/true, sgd_by_hand);
  }
}

TEST(Optimizer, MuonLeavesTheRestToAdamw) {
  const ModelLayout layout = make_layout(test::small_gpt2());
  for (int64_t block = 0; block < static_cast<int64_t>(layout.blocks.size()); ++block) {
    expect_by_hand(config_of(OptimizerKind::muon), layout, block, /*hidden_too=*/false, adamw_by_hand);
  }
}

// Only matrices decay: with a gradient of zero they shrink by lr * weight_decay, vectors stay.
TEST(Optimizer, WeightDecayIsDecoupledAndOnMatricesOnly) {
  const ModelLayout layout = make_layout(test::small_gpt2());
  constexpr int64_t kBlock = 1;
  const BlockSpec& spec = layout.blocks[kBlock];
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    const std::vector<float> zeros(static_cast<size_t>(spec.size), 0.0F);
    const std::vector<float> old_values = random_values(spec.size, 5);
    std::vector<float> new_values = zeros;
    Optimizer optimizer(config_of(kind), layout, whole_block(layout, kBlock));
    for (int64_t piece = 0; piece < optimizer.pieces(); ++piece) {
      optimizer.update(piece, 0, kRates, kScale, zeros.data(), old_values.data(), new_values.data());
    }
    for (const TensorSpec& tensor : spec.tensors) {
      EXPECT_EQ(tensor.decay, !tensor.is_vector);
      const double factor = tensor.decay ? 1.0 - kRates.base * 0.1 : 1.0;
      for (auto i = static_cast<size_t>(tensor.offset); i < static_cast<size_t>(tensor.offset + tensor.size()); ++i) {
        ASSERT_NEAR(new_values[i], factor * old_values[i], 1e-6) << tensor.name;
      }
    }
  }
}

/// Momentum and shape factor of Muon in double precision round the tested orthogonalize().
TEST(Optimizer, MuonStepsAlongTheOrthogonalizedNesterovMomentum) {
  const ModelLayout layout = make_layout(test::small_llama());
  const OptimizerConfig config = config_of(OptimizerKind::muon);
  for (const int64_t block : {1, 2}) {
    const BlockSpec& spec = layout.blocks[static_cast<size_t>(block)];
    const std::vector<float> values = after_updates(config, layout, whole_block(layout, block), 2);
    const std::vector<float> start = random_values(spec.size, 1000);
    const std::vector<std::vector<float>> gradients{random_values(spec.size, 0), random_values(spec.size, 1)};
    for (const TensorSpec& tensor : spec.tensors) {
      if (!tensor.orthogonal) continue;
      const auto begin = static_cast<size_t>(tensor.offset);
      const auto size = static_cast<size_t>(tensor.size());
      std::vector<double> w(start.begin() + tensor.offset, start.begin() + tensor.offset + tensor.size());
      std::vector<double> m(size, 0.0);
      for (const std::vector<float>& gradient : gradients) {
        std::vector<float> direction(size);
        for (size_t i = 0; i < size; ++i) {
          const double g = gradient[begin + i] * kScale;
          m[i] = config.momentum * m[i] + g;
          direction[i] = static_cast<float>(g + config.momentum * m[i]);
        }
        orthogonalize(tensor.rows, tensor.columns, direction);
        const double shape =
            std::sqrt(std::max(1.0, static_cast<double>(tensor.rows) / static_cast<double>(tensor.columns)));
        for (size_t i = 0; i < size; ++i) {
          w[i] -= kRates.muon * shape * direction[i] + kRates.base * config.weight_decay * w[i];
        }
      }
      for (size_t i = 0; i < size; ++i) ASSERT_NEAR(values[begin + i], w[i], 1e-5) << spec.name << "." << tensor.name;
    }
  }
}

// A block split between servers ends with the bits of the whole one, state included.
TEST(Optimizer, PartsGiveTheBitsOfTheWhole) {
  const ModelLayout layout = make_layout(test::small_llama());
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    const OptimizerConfig config = config_of(kind);
    const ShardPlan plan = plan_shards(layout, kind == OptimizerKind::muon ? 3 : 5, kind);
    int64_t split_blocks = 0;
    for (size_t block = 0; block < layout.blocks.size(); ++block) {
      const std::vector<float> whole =
          after_updates(config, layout, whole_block(layout, static_cast<int64_t>(block)), 4);
      split_blocks += plan.parts_of_block[block].size() > 1 ? 1 : 0;
      for (const int64_t index : plan.parts_of_block[block]) {
        const Part& part = plan.parts[static_cast<size_t>(index)];
        const std::vector<float> values = after_updates(config, layout, part, 4);
        EXPECT_EQ(std::memcmp(values.data(), whole.data() + part.begin, values.size() * sizeof(float)), 0)
            << layout.blocks[block].name << " from " << part.begin;
      }
    }
    EXPECT_GT(split_blocks, 0);
  }
}

// A server that publishes rounded values has one array of its own, and updates it in place.
TEST(Optimizer, UpdatesInPlaceWithTheSameBits) {
  const ModelLayout layout = make_layout(test::small_llama());
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    for (int64_t block = 0; block < static_cast<int64_t>(layout.blocks.size()); ++block) {
      std::vector<std::vector<OptimizerState>> state_apart;
      std::vector<std::vector<OptimizerState>> state_same;
      const Part part = whole_block(layout, block);
      const std::vector<float> apart = after_updates(config_of(kind), layout, part, 4, &state_apart);
      const std::vector<float> same = after_updates(config_of(kind), layout, part, 4, &state_same, Place::same);
      EXPECT_EQ(same, apart) << "block " << block;
      ASSERT_EQ(state_same.size(), state_apart.size());
      for (size_t piece = 0; piece < state_same.size(); ++piece) {
        for (size_t i = 0; i < state_same[piece].size(); ++i) {
          EXPECT_EQ(state_same[piece][i].values, state_apart[piece][i].values) << "block " << block;
        }
      }
    }
  }
}

// State taken out and put into a new optimizer goes on with the same bits: what a restore does.
TEST(Optimizer, StateCarriesOver) {
  const ModelLayout layout = make_layout(test::small_llama());
  const Part part = whole_block(layout, 1);
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    const std::vector<float> uninterrupted = after_updates(config_of(kind), layout, part, 4);
    std::vector<std::vector<OptimizerState>> states;
    const std::vector<float> middle = after_updates(config_of(kind), layout, part, 3, &states);
    Optimizer restored(config_of(kind), layout, part);
    std::vector<float> values(middle.size());
    const std::vector<float> gradient = random_values(part.count, 3);
    for (int64_t piece = 0; piece < restored.pieces(); ++piece) {
      restored.state(piece) = states[static_cast<size_t>(piece)];
      restored.update(piece, 3, kRates, kScale, gradient.data(), middle.data(), values.data());
    }
    EXPECT_EQ(values, uninterrupted);
  }
}

TEST(Optimizer, TouchesOnlyItsPiece) {
  const ModelLayout layout = make_layout(test::small_llama());
  const Part part = whole_block(layout, 1);
  Optimizer optimizer(config_of(OptimizerKind::adamw), layout, part);
  const std::vector<float> gradient = random_values(part.count, 0);
  const std::vector<float> old_values = random_values(part.count, 1);
  for (int64_t piece = 0; piece < optimizer.pieces(); ++piece) {
    std::vector<float> new_values(old_values.size(), 99.0F);
    optimizer.update(piece, 0, kRates, 1.0, gradient.data(), old_values.data(), new_values.data());
    const TensorPiece& place = optimizer.piece(piece);
    for (int64_t i = 0; i < part.count; ++i) {
      const bool inside = i >= place.part_offset && i < place.part_offset + place.size();
      EXPECT_EQ(new_values[static_cast<size_t>(i)] != 99.0F, inside) << i;
    }
  }
}

TEST(Optimizer, StateHasNamesAndTheShapeOfItsPiece) {
  const ModelLayout layout = make_layout(test::small_llama());
  const TensorSpec& vector = layout.blocks[1].tensors[0];
  const TensorSpec& hidden = layout.blocks[1].tensors[1];
  ASSERT_TRUE(hidden.orthogonal);
  const std::vector<std::string> adamw{"adamw.m", "adamw.v"};
  EXPECT_EQ(state_names(OptimizerKind::adamw, vector), adamw);
  EXPECT_EQ(state_names(OptimizerKind::adamw, hidden), adamw);
  EXPECT_EQ(state_names(OptimizerKind::sgd, hidden), std::vector<std::string>{"sgd.momentum"});
  EXPECT_EQ(state_names(OptimizerKind::muon, vector), adamw);
  EXPECT_EQ(state_names(OptimizerKind::muon, hidden), std::vector<std::string>{"muon.momentum"});
  Optimizer optimizer(config_of(OptimizerKind::muon), layout, whole_block(layout, 1));
  for (int64_t piece = 0; piece < optimizer.pieces(); ++piece) {
    const TensorPiece& place = optimizer.piece(piece);
    const TensorSpec& tensor = layout.blocks[1].tensors[static_cast<size_t>(place.tensor)];
    std::vector<std::string> names;
    for (const OptimizerState& state : optimizer.state(piece)) {
      names.push_back(state.name);
      EXPECT_EQ(state.values, std::vector<float>(static_cast<size_t>(place.size()), 0.0F));
    }
    EXPECT_EQ(names, state_names(OptimizerKind::muon, tensor));
  }
}

/// Eigenvalues of a symmetric matrix (n, n) by cyclic Jacobi rotations.
std::vector<double> eigenvalues(int64_t n, std::vector<double> a) {
  const auto at = [&a, n](int64_t i, int64_t j) -> double& { return a[static_cast<size_t>(i * n + j)]; };
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        if (std::abs(at(p, q)) < 1e-14) continue;
        const double angle = 0.5 * std::atan2(2.0 * at(p, q), at(q, q) - at(p, p));
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        for (int64_t k = 0; k < n; ++k) {
          const double kp = at(k, p);
          const double kq = at(k, q);
          at(k, p) = c * kp - s * kq;
          at(k, q) = s * kp + c * kq;
        }
        for (int64_t k = 0; k < n; ++k) {
          const double pk = at(p, k);
          const double qk = at(q, k);
          at(p, k) = c * pk - s * qk;
          at(q, k) = s * pk + c * qk;
        }
      }
    }
  }
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(at(i, i));
  return values;
}

/// Singular values, from the Gram matrix of the shorter side.
std::vector<double> singular_values(int64_t rows, int64_t columns, const std::vector<float>& matrix) {
  const int64_t n = std::min(rows, columns);
  const int64_t length = std::max(rows, columns);
  const auto at = [&](int64_t i, int64_t k) -> double {  // vector i of the shorter side, element k
    return matrix[static_cast<size_t>(rows <= columns ? i * columns + k : k * columns + i)];
  };
  std::vector<double> gram(static_cast<size_t>(n * n), 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < length; ++k) gram[static_cast<size_t>(i * n + j)] += at(i, k) * at(j, k);
    }
  }
  std::vector<double> values = eigenvalues(n, std::move(gram));
  for (double& value : values) value = std::sqrt(std::max(value, 0.0));
  return values;
}

struct Shape {
  int64_t rows;
  int64_t columns;
};

// The five steps bring every singular value that is not tiny into about [0.7, 1.2] (Jordan et al. 2024).
TEST(Orthogonalize, BringsSingularValuesNearOne) {
  for (const Shape shape : {Shape{16, 40}, Shape{40, 16}, Shape{24, 96}, Shape{1, 50}, Shape{50, 1}, Shape{1, 1}}) {
    std::vector<float> matrix = random_values(shape.rows * shape.columns, static_cast<uint64_t>(shape.rows));
    for (float& value : matrix) value *= 1e-3F;  // the scale must not matter
    orthogonalize(shape.rows, shape.columns, matrix);
    for (const double value : singular_values(shape.rows, shape.columns, matrix)) {
      EXPECT_GE(value, 0.65) << shape.rows << " x " << shape.columns;
      EXPECT_LE(value, 1.25) << shape.rows << " x " << shape.columns;
    }
  }
}

// A square random matrix has singular values near zero, which five steps cannot bring to one; the others they do.
TEST(Orthogonalize, SquareMatrices) {
  for (const int64_t n : {5, 16, 48}) {
    std::vector<float> matrix = random_values(n * n, static_cast<uint64_t>(n));
    const std::vector<double> before = singular_values(n, n, matrix);
    double norm = 0;
    for (const double value : before) norm += value * value;
    norm = std::sqrt(norm);
    const auto normal =
        std::count_if(before.begin(), before.end(), [norm](double value) { return value > 0.02 * norm; });
    orthogonalize(n, n, matrix);
    const std::vector<double> after = singular_values(n, n, matrix);
    EXPECT_LE(*std::max_element(after.begin(), after.end()), 1.25);
    const auto near_one = std::count_if(after.begin(), after.end(), [](double value) { return value >= 0.65; });
    EXPECT_GE(near_one, normal) << n;
    EXPECT_GE(near_one, n - n / 8 - 1) << n;
  }
}

// The result keeps the singular vectors: for orthogonal rows of unequal length it scales each row, no more.
TEST(Orthogonalize, KeepsDirections) {
  std::vector<float> matrix(3 * 5, 0.0F);
  matrix[0] = 3.0F;
  matrix[5 + 2] = -2.0F;
  matrix[10 + 4] = 1.0F;
  orthogonalize(3, 5, matrix);
  for (size_t i = 0; i < matrix.size(); ++i) {
    const double expected = i == 0 || i == 14 ? 1.0 : i == 7 ? -1.0 : 0.0;
    EXPECT_NEAR(matrix[i], expected, expected == 0.0 ? 1e-6 : 0.35) << i;
  }
}

TEST(Orthogonalize, OfTheTransposedIsTheTransposed) {
  constexpr int64_t kRows = 12;
  constexpr int64_t kColumns = 31;
  std::vector<float> wide = random_values(kRows * kColumns, 8);
  std::vector<float> tall(wide.size());
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      tall[static_cast<size_t>(j * kRows + i)] = wide[static_cast<size_t>(i * kColumns + j)];
    }
  }
  orthogonalize(kRows, kColumns, wide);
  orthogonalize(kColumns, kRows, tall);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      EXPECT_EQ(tall[static_cast<size_t>(j * kRows + i)], wide[static_cast<size_t>(i * kColumns + j)]);
    }
  }
}

/// a (m, k) times b (k, n), both row-major.
std::vector<double> product(int64_t m, int64_t k, int64_t n, const std::vector<double>& a,
                            const std::vector<double>& b) {
  std::vector<double> result(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) {
        result[static_cast<size_t>(i * n + j)] += a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * n + j)];
      }
    }
  }
  return result;
}

// X <- a X + (b A + c A A) X with A = X X^T, five times, in double precision.
TEST(Orthogonalize, IsFiveNewtonSchulzIterations) {
  constexpr int64_t kRows = 9;
  constexpr int64_t kColumns = 21;
  std::vector<float> matrix = random_values(kRows * kColumns, 6);
  std::vector<double> x(matrix.begin(), matrix.end());
  double sum = 0;
  for (const double value : x) sum += value * value;
  for (double& value : x) value /= std::sqrt(sum) + 1e-7;
  for (int iteration = 0; iteration < 5; ++iteration) {
    std::vector<double> transposed(x.size());
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        transposed[static_cast<size_t>(j * kRows + i)] = x[static_cast<size_t>(i * kColumns + j)];
      }
    }
    const std::vector<double> gram = product(kRows, kColumns, kRows, x, transposed);
    std::vector<double> polynomial = product(kRows, kRows, kRows, gram, gram);
    for (size_t i = 0; i < gram.size(); ++i) polynomial[i] = 2.0315 * polynomial[i] - 4.7750 * gram[i];
    const std::vector<double> change = product(kRows, kRows, kColumns, polynomial, x);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + change[i];
  }
  orthogonalize(kRows, kColumns, matrix);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(matrix[i], x[i], 1e-4) << i;
}

TEST(Orthogonalize, ZeroStaysZero) {
  std::vector<float> matrix(4 * 6, 0.0F);
  orthogonalize(4, 6, matrix);
  EXPECT_EQ(matrix, std::vector<float>(4 * 6, 0.0F));
}

}  // namespace
}  // namespace hat
