#include "hat/model/shard_plan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "hat/core/error.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {

// The allowed cut nearest to element `wanted` of all parameters in a row.
int64_t nearest_cut(const ModelLayout& layout, OptimizerKind optimizer, int64_t wanted) {
  int64_t start = 0;
  for (const BlockSpec& block : layout.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const int64_t end = start + tensor.size();
      if (wanted < end) {
        const bool whole = optimizer == OptimizerKind::muon && tensor.orthogonal;
        const int64_t stride = whole ? tensor.size() : tensor.columns;
        const int64_t below = start + (wanted - start) / stride * stride;
        const int64_t above = std::min(below + stride, end);
        return wanted - below <= above - wanted ? below : above;
      }
      start = end;
    }
  }
  return start;
}

// Relative depth in layers of "layers.<i>.<sublayer>"; nothing for other blocks.
std::optional<int64_t> layer_of(const std::string& name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t layer = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

ShardPlan plan_shards(const ModelLayout& layout, int servers, OptimizerKind optimizer) {
  const int64_t total = layout.size();
  std::vector<int64_t> cuts{0};
  for (int server = 1; server < servers; ++server) {
    const auto wanted = static_cast<int64_t>(static_cast<double>(total) * server / servers);
    cuts.push_back(std::max(cuts.back(), nearest_cut(layout, optimizer, wanted)));
  }
  cuts.push_back(total);

  ShardPlan plan;
  plan.parts_of_block.resize(layout.blocks.size());
  plan.parts_of_server.resize(static_cast<size_t>(servers));
  int64_t block_start = 0;
  for (size_t block = 0; block < layout.blocks.size(); ++block) {
    const int64_t block_end = block_start + layout.blocks[block].size;
    for (int server = 0; server < servers; ++server) {
      const int64_t begin = std::max(block_start, cuts[static_cast<size_t>(server)]);
      const int64_t end = std::min(block_end, cuts[static_cast<size_t>(server) + 1]);
      if (begin >= end) continue;
      const auto index = static_cast<int64_t>(plan.parts.size());
      plan.parts.push_back(
          {.block = static_cast<int64_t>(block), .begin = begin - block_start, .count = end - begin, .server = server});
      plan.parts_of_block[block].push_back(index);
      plan.parts_of_server[static_cast<size_t>(server)].push_back(index);
    }
    block_start = block_end;
  }
  return plan;
}

std::vector<TensorPiece> pieces_of(const ModelLayout& layout, const Part& part) {
  std::vector<TensorPiece> pieces;
  const BlockSpec& block = layout.blocks[static_cast<size_t>(part.block)];
  for (size_t t = 0; t < block.tensors.size(); ++t) {
    const TensorSpec& tensor = block.tensors[t];
    const int64_t begin = std::max(part.begin, tensor.offset);
    const int64_t end = std::min(part.begin + part.count, tensor.offset + tensor.size());
    if (begin >= end) continue;
    pieces.push_back({.block = part.block,
                      .tensor = static_cast<int64_t>(t),
                      .first_row = (begin - tensor.offset) / tensor.columns,
                      .rows = (end - begin) / tensor.columns,
                      .columns = tensor.columns,
                      .part_offset = begin - part.begin});
  }
  return pieces;
}

namespace {
/// The block where the upper half of the network begins: a layer, or the head.
size_t upper_half(const ModelLayout& layout, const std::vector<BlockFlop>& flop) {
  const double half = sum(flop).per_token / 2;
  double before = 0;
  size_t nearest = layout.blocks.size() - 1;
  double distance = half;
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    const std::string& name = layout.blocks[b].name;
    const bool begins = name == "head" || (name.ends_with(".attention") && layer_of(name) > 0);
    if (begins && std::abs(before - half) < distance) {
      nearest = b;
      distance = std::abs(before - half);
    }
    before += flop[b].per_token;
  }
  return nearest;
}
}  // namespace

std::vector<bool> barrier_blocks(const ModelLayout& layout, const std::vector<BlockFlop>& flop,
                                 const std::vector<std::string>& barriers) {
  std::vector<bool> result(layout.blocks.size(), false);
  std::vector<std::string> names;
  for (const BlockSpec& block : layout.blocks) names.push_back(block.name);
  const size_t upper = upper_half(layout, flop);
  for (const std::string& barrier : barriers) {
    bool matched = barrier == "none" || barrier == "sensitivity";
    for (size_t b = 0; b < names.size(); ++b) {
      const bool hit = barrier == "all" || (barrier == "attention" && names[b].ends_with(".attention")) ||
                       (barrier == "upper" && b >= upper) || glob_match(barrier, names[b]);
      if (!hit) continue;
      result[b] = true;
      matched = true;
    }
    if (!matched) {
      std::vector<std::string> candidates = names;
      candidates.insert(candidates.end(), {"none", "all", "attention", "upper", "sensitivity"});
      const std::string guess = closest_match(barrier, candidates);
      throw KeyError("barriers", fmt::format("'{}' matches no block of this model{}", barrier,
                                             guess.empty() ? "" : fmt::format("; did you mean '{}'?", guess)));
    }
  }
  return result;
}

}  // namespace hat
