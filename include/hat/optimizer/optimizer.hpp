#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/model/layout.hpp"
#include "hat/model/shard_plan.hpp"

namespace hat {

/// Learning rates of one update.
struct LearningRates {
  double base = 0;  ///< AdamW and SGD; also scales weight decay
  double muon = 0;
};

/// State that belongs to one tensor piece.
struct OptimizerState {
  std::string name;
  std::vector<float> values;  // (rows, columns) of the piece; of a row state (rows)
};

/// Names of the state that the optimizer keeps for a tensor: "adamw.m", "adamw.v", "sgd.momentum", "muon.momentum".
std::vector<std::string> state_names(OptimizerKind kind, const TensorSpec& tensor);

/// Behind them, with one value for each row: "adamw.beta1_product" where beta1 differs from update to update
/// (optimizer.momentum_rule = staleness). By rows, so that it is cut and joined like the tensor.
std::vector<std::string> row_state_names(const OptimizerConfig& config, const TensorSpec& tensor);

/// The optimizer of one part: its state and its update rule. Works tensor piece by tensor piece, so that a server can
/// do something else in between.
///   AdamW (Loshchilov, Hutter 2019): m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w -= lr m^ / (sqrt(v^) + epsilon)
///   SGD with momentum:               m = mu m + g, w -= lr m
///   Muon (Jordan et al. 2024), hidden matrices only, the rest by AdamW: m = mu m + g,
///                                    w -= lr_muon sqrt(max(1, rows / columns)) orthogonalize(g + mu m)
/// Each also with decoupled weight decay w -= lr weight_decay w on tensors of the decay group.
/// optimizer.momentum_rule = staleness: b1 and mu are raised to the power 1 + staleness of the update, and m^ is
/// m / (1 - product of the b1 so far).
class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, const ModelLayout& layout, const Part& part);

  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }
  const TensorPiece& piece(int64_t index) const { return pieces_[static_cast<size_t>(index)].place; }

  /// new_values = old_values after one update of piece `index`. `gradient` is multiplied by `gradient_scale` (one over
  /// the tokens, times clipping). `updates` is the number of updates the block has had before this one. All three
  /// arrays start at the part's first element; only the piece's elements are touched. new_values may be old_values.
  /// `staleness`: how many versions old the gradient is, the mean over its pushes; counts by optimizer.momentum_rule.
  void update(int64_t index, int64_t updates, LearningRates rates, double gradient_scale, const float* gradient,
              const float* old_values, float* new_values, double staleness = 0);

  /// State of a piece, to be saved, or filled when restoring: by state_names, then by row_state_names.
  std::vector<OptimizerState>& state(int64_t index) { return pieces_[static_cast<size_t>(index)].state; }

 private:
  struct Piece {
    TensorPiece place;
    OptimizerKind rule;
    bool decay;
    std::vector<OptimizerState> state;
  };
  OptimizerConfig config_;
  std::vector<Piece> pieces_;
};

/// The nearest semi-orthogonal matrix, approximately: five Newton-Schulz iterations with the coefficients of Jordan et
/// al. 2024 (3.4445, -4.7750, 2.0315) on matrix / (norm + 1e-7). In place, (rows, columns) row-major.
void orthogonalize(int64_t rows, int64_t columns, std::vector<float>& matrix);

}  // namespace hat
