#include "hat/server/checkpoint_slices.hpp"

#include <fmt/format.h>

#include "hat/optimizer/optimizer.hpp"

namespace hat {

std::string optimizer_path(const std::string& state, const BlockSpec& block, const TensorSpec& tensor) {
  return fmt::format("/optimizer/{}/{}.{}", state, block.name, tensor.name);
}

std::vector<TensorSlice> checkpoint_slices(const RunPlan& plan, int64_t part) {
  const Part& place = plan.shards.parts[static_cast<size_t>(part)];
  const BlockSpec& block = plan.layout.blocks[static_cast<size_t>(place.block)];
  std::vector<TensorSlice> slices;
  for (const TensorPiece& piece : pieces_of(plan.layout, place)) {
    const TensorSpec& tensor = block.tensors[static_cast<size_t>(piece.tensor)];
    TensorSlice slice{.path = parameter_path(block, tensor),
                      .total_rows = tensor.rows,
                      .columns = tensor.columns,
                      .is_vector = tensor.is_vector,
                      .first_row = piece.first_row,
                      .rows = piece.rows};
    slices.push_back(slice);
    for (const std::string& state : state_names(plan.deck.optimizer.kind, tensor)) {
      slice.path = optimizer_path(state, block, tensor);
      slices.push_back(slice);
    }
    slice.columns = 1;
    slice.is_vector = true;
    for (const std::string& state : row_state_names(plan.deck.optimizer, tensor)) {
      slice.path = optimizer_path(state, block, tensor);
      slices.push_back(slice);
    }
  }
  return slices;
}

std::vector<std::vector<TensorSlice>> slices_of_servers(const RunPlan& plan) {
  std::vector<std::vector<TensorSlice>> slices;
  for (const std::vector<int64_t>& parts : plan.shards.parts_of_server) {
    slices.emplace_back();
    for (const int64_t part : parts) {
      const std::vector<TensorSlice> own = checkpoint_slices(plan, part);
      slices.back().insert(slices.back().end(), own.begin(), own.end());
    }
  }
  return slices;
}

}  // namespace hat
