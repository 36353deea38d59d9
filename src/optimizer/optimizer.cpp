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

void adamw(const OptimizerConfig& config, const Span& s, float scale, float rate, float decay, int64_t updates,
           float* m, float* v) {
  const auto b1 = static_cast<float>(config.beta1);
  const auto b2 = static_cast<float>(config.beta2);
  const auto t = static_cast<double>(updates + 1);
  const auto unbias1 = static_cast<float>(1.0 / (1.0 - std::pow(config.beta1, t)));
  const auto unbias2 = static_cast<float>(1.0 / (1.0 - std::pow(config.beta2, t)));
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

void sgd(const OptimizerConfig& config, const Span& s, float scale, float rate, float decay, float* m) {
  const auto momentum = static_cast<float>(config.momentum);
#pragma omp simd
  for (int64_t i = 0; i < s.n; ++i) {
    m[i] = momentum * m[i] + s.gradient[i] * scale;
    s.new_values[i] = s.old_values[i] - rate * m[i] - decay * s.old_values[i];
  }
}

void muon(const OptimizerConfig& config, const Span& s, float scale, double rate, float decay, int64_t rows,
          int64_t columns, float* m) {
  const auto momentum = static_cast<float>(config.momentum);
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

Optimizer::Optimizer(const OptimizerConfig& config, const ModelLayout& layout, const Part& part) : config_(config) {
  for (const TensorPiece& place : pieces_of(layout, part)) {
    const TensorSpec& tensor =
        layout.blocks[static_cast<size_t>(place.block)].tensors[static_cast<size_t>(place.tensor)];
    Piece piece{.place = place, .rule = rule_of(config.kind, tensor), .decay = tensor.decay, .state = {}};
    for (const std::string& name : state_names(config.kind, tensor)) {
      piece.state.push_back({.name = name, .values = std::vector<float>(static_cast<size_t>(place.size()), 0.0F)});
    }
    pieces_.push_back(std::move(piece));
  }
}

void Optimizer::update(int64_t index, int64_t updates, LearningRates rates, double gradient_scale,
                       const float* gradient, const float* old_values, float* new_values) {
  Piece& piece = pieces_[static_cast<size_t>(index)];
  const int64_t offset = piece.place.part_offset;
  const Span span{.gradient = gradient + offset,
                  .old_values = old_values + offset,
                  .new_values = new_values + offset,
                  .n = piece.place.size()};
  const auto scale = static_cast<float>(gradient_scale);
  const auto rate = static_cast<float>(rates.base);
  const auto decay = piece.decay ? static_cast<float>(rates.base * config_.weight_decay) : 0.0F;
  switch (piece.rule) {
    case OptimizerKind::adamw:
      adamw(config_, span, scale, rate, decay, updates, piece.state[0].values.data(), piece.state[1].values.data());
      break;
    case OptimizerKind::sgd:
      sgd(config_, span, scale, rate, decay, piece.state[0].values.data());
      break;
    case OptimizerKind::muon:
      muon(config_, span, scale, rates.muon, decay, piece.place.rows, piece.place.columns,
           piece.state[0].values.data());
      break;
  }
}

}  // namespace hat
