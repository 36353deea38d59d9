#include "hat/model/flop_count.hpp"

namespace hat {

std::vector<BlockFlop> count_flop(const ModelConfig& config, const ModelLayout& layout) {
  std::vector<BlockFlop> blocks;
  for (const BlockSpec& block : layout.blocks) {
    const bool attention = block.name.ends_with(".attention");
    blocks.push_back({.per_token = 6.0 * static_cast<double>(block.size),
                      .per_square = attention ? 6.0 * static_cast<double>(config.width) : 0.0});
  }
  blocks.front().per_token = 0;
  if (config.tied) {
    blocks.back().per_token += 6.0 * static_cast<double>(layout.blocks.front().tensors.front().size());
  }
  return blocks;
}

BlockFlop sum(const std::vector<BlockFlop>& blocks) {
  BlockFlop total;
  for (const BlockFlop& block : blocks) {
    total.per_token += block.per_token;
    total.per_square += block.per_square;
  }
  return total;
}

}  // namespace hat
