#include "hat/optimizer/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace hat {

namespace {

struct Span {
  const float* gradient;  // n elements each
  const float* old_values;
  float* new_values;
  int64_t n;
};

/// What is left of the start values (zero) of m and v after this update: the products of all beta1 and of all beta2.
struct Remainders {
  double m;
  double v;
};

void adamw(const OptimizerConfig& config, const Span& s, float scale, float rate, float decay, double beta1,
           Remainders remainders, float* m, float* v) {
  const auto b1 = static_cast<float>(beta1);
  const auto b2 = static_cast<float>(config.beta2);
  const auto unbias1 = static_cast<float>(1.0 / (1.0 - remainders.m));
  const auto unbias2 = static_cast<float>(1.0 / (1.0 - remainders.v));
  const auto epsilon = static_cast<float>(config.epsilon);
#pragma omp simd
  for (int64_t i = 0; i < s.n; ++i) {
    const float g = s.gradient[i] * scale;
    m[i] = b1 * m[i] + (1.0F - b1) * g;
    v[i] = b2 * v[i] + (1.0F - b2) * g * g;
    const float direction = m[i] * unbias1 / (std::sqrt(v[i] * unbias2) + epsilon);
    s.new_values[i] = s.old_values[i] - rate * direction - decay * s.old_values[i];
  }
}

/// `products`: of all beta1 so far, by row.
void adamw_by_rows(const OptimizerConfig& config, const Span& s, float scale, float rate, float decay, double beta1,
                   double v_remainder, int64_t columns, float* m, float* v, float* products) {
  for (int64_t begin = 0; begin < s.n; begin += columns) {
    float& product = products[begin / columns];
    product *= static_cast<float>(beta1);
    const Span row{.gradient = s.gradient + begin,
                   .old_values = s.old_values + begin,
                   .new_values = s.new_values + begin,
                   .n = columns};
    adamw(config, row, scale, rate, decay, beta1, {.m = product, .v = v_remainder}, m + begin, v + begin);
  }
}

void sgd(double mu, const Span& s, float scale, float rate, float decay, float* m) {
  const auto momentum = static_cast<float>(mu);
#pragma omp simd
  for (int64_t i = 0; i < s.n; ++i) {
    m[i] = momentum * m[i] + s.gradient[i] * scale;
    s.new_values[i] = s.old_values[i] - rate * m[i] - decay * s.old_values[i];
  }
}

void muon(double mu, const Span& s, float scale, double rate, float decay, int64_t rows, int64_t columns, float* m) {
  const auto momentum = static_cast<float>(mu);
  std::vector<float> direction(static_cast<size_t>(s.n));
  for (int64_t i = 0; i < s.n; ++i) {
    const float g = s.gradient[i] * scale;
    m[i] = momentum * m[i] + g;
    direction[static_cast<size_t>(i)] = g + momentum * m[i];
  }
  orthogonalize(rows, columns, direction);
  const double shape = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  const auto step = static_cast<float>(rate * shape);
  for (int64_t i = 0; i < s.n; ++i) {
    s.new_values[i] = s.old_values[i] - step * direction[static_cast<size_t>(i)] - decay * s.old_values[i];
  }
}

// Muon updates the hidden matrices; everything else it leaves to AdamW.
OptimizerKind rule_of(OptimizerKind kind, const TensorSpec& tensor) {
  return kind == OptimizerKind::muon && !tensor.orthogonal ? OptimizerKind::adamw : kind;
}

}  // namespace

std::vector<std::string> state_names(OptimizerKind kind, const TensorSpec& tensor) {
  switch (rule_of(kind, tensor)) {
    case OptimizerKind::sgd:
      return {"sgd.momentum"};
    case OptimizerKind::muon:
      return {"muon.momentum"};
    case OptimizerKind::adamw:
      break;
  }
  return {"adamw.m", "adamw.v"};
}

std::vector<std::string> row_state_names(const OptimizerConfig& config, const TensorSpec& tensor) {
  const bool varies = config.momentum_rule == MomentumRule::staleness;
  return varies && rule_of(config.kind, tensor) == OptimizerKind::adamw
             ? std::vector<std::string>{"adamw.beta1_product"}
             : std::vector<std::string>{};
}

Optimizer::Optimizer(const OptimizerConfig& config, const ModelLayout& layout, const Part& part) : config_(config) {
  for (const TensorPiece& place : pieces_of(layout, part)) {
    const TensorSpec& tensor =
        layout.blocks[static_cast<size_t>(place.block)].tensors[static_cast<size_t>(place.tensor)];
    Piece piece{.place = place, .rule = rule_of(config.kind, tensor), .decay = tensor.decay, .state = {}};
    for (const std::string& name : state_names(config.kind, tensor)) {
      piece.state.push_back({.name = name, .values = std::vector<float>(static_cast<size_t>(place.size()), 0.0F)});
    }
    for (const std::string& name : row_state_names(config, tensor)) {
      piece.state.push_back({.name = name, .values = std::vector<float>(static_cast<size_t>(place.rows), 1.0F)});
    }
    pieces_.push_back(std::move(piece));
  }
}

void Optimizer::update(int64_t index, int64_t updates, LearningRates rates, double gradient_scale,
                       const float* gradient, const float* old_values, float* new_values, double staleness) {
  Piece& piece = pieces_[static_cast<size_t>(index)];
  const int64_t offset = piece.place.part_offset;
  const Span span{.gradient = gradient + offset,
                  .old_values = old_values + offset,
                  .new_values = new_values + offset,
                  .n = piece.place.size()};
  const auto scale = static_cast<float>(gradient_scale);
  const auto rate = static_cast<float>(rates.base);
  const auto decay = piece.decay ? static_cast<float>(rates.base * config_.weight_decay) : 0.0F;
  const double power = config_.momentum_rule == MomentumRule::staleness ? 1.0 + staleness : 1.0;
  const double momentum = std::pow(config_.momentum, power);
  float* state = piece.state.front().values.data();
  switch (piece.rule) {
    case OptimizerKind::adamw: {
      const double beta1 = std::pow(config_.beta1, power);
      const auto t = static_cast<double>(updates + 1);
      const Remainders fixed{.m = std::pow(config_.beta1, t), .v = std::pow(config_.beta2, t)};
      float* squares = piece.state[1].values.data();
      if (config_.momentum_rule == MomentumRule::staleness) {
        adamw_by_rows(config_, span, scale, rate, decay, beta1, fixed.v, piece.place.columns, state, squares,
                      piece.state[2].values.data());
      } else {
        adamw(config_, span, scale, rate, decay, beta1, fixed, state, squares);
      }
      break;
    }
    case OptimizerKind::sgd:
      sgd(momentum, span, scale, rate, decay, state);
      break;
    case OptimizerKind::muon:
      muon(momentum, span, scale, rates.muon, decay, piece.place.rows, piece.place.columns, state);
      break;
  }
}

}  // namespace hat
