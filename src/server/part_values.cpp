#include "server/part_values.hpp"

#include "hat/server/checkpoint_slices.hpp"

namespace hat {

void initialize_part(const RunPlan& plan, int64_t part, float* values) {
  const Part& place = plan.shards.parts[static_cast<size_t>(part)];
  initialize(plan.layout, place.block, place.begin, values, place.count, plan.deck.seed);
}

void restore_part(const RunPlan& plan, int64_t part, const TensorSource& saved, Optimizer& optimizer, float* values) {
  const Part& place = plan.shards.parts[static_cast<size_t>(part)];
  const BlockSpec& block = plan.layout.blocks[static_cast<size_t>(place.block)];
  for (int64_t p = 0; p < optimizer.pieces(); ++p) {
    const TensorPiece& piece = optimizer.piece(p);
    const TensorSpec& tensor = block.tensors[static_cast<size_t>(piece.tensor)];
    saved(parameter_path(block, tensor), piece.first_row, piece.rows, piece.columns, values + piece.part_offset);
    for (OptimizerState& state : optimizer.state(p)) {
      const auto columns = static_cast<int64_t>(state.values.size()) / piece.rows;
      saved(optimizer_path(state.name, block, tensor), piece.first_row, piece.rows, columns, state.values.data());
    }
  }
}

std::vector<TensorSlice> part_slices(const RunPlan& plan, int64_t part, Optimizer& optimizer, const float* values) {
  std::vector<TensorSlice> result = checkpoint_slices(plan, part);
  auto slice = result.begin();
  for (int64_t p = 0; p < optimizer.pieces(); ++p) {
    (slice++)->data = values + optimizer.piece(p).part_offset;
    for (const OptimizerState& state : optimizer.state(p)) (slice++)->data = state.values.data();
  }
  return result;
}

}  // namespace hat
