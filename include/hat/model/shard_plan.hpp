#pragma once
#include <cstdint>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/model/flop_count.hpp"
#include "hat/model/layout.hpp"

namespace hat {

/// A run of one block that one server owns: elements [begin, begin + count) of the block.
struct Part {
  int64_t block = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int server = 0;
};

/// The rows of one tensor that lie in a part.
struct TensorPiece {
  int64_t block = 0;
  int64_t tensor = 0;  ///< index in the block
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t part_offset = 0;  ///< first element, counted from the part's beginning
  int64_t size() const { return rows * columns; }
};

/// Which server owns what. Parts stand in layout order; each server owns a contiguous stretch of all parameters.
struct ShardPlan {
  std::vector<Part> parts;
  std::vector<std::vector<int64_t>> parts_of_block;  ///< indices into `parts`
  std::vector<std::vector<int64_t>> parts_of_server;
};

/// Spreads the parameters over `servers` by bytes. Blocks are cut only between rows of a tensor, and under Muon never
/// inside a hidden matrix, whose update needs it whole; so shards are equal up to half a matrix.
ShardPlan plan_shards(const ModelLayout& layout, int servers, OptimizerKind optimizer);

std::vector<TensorPiece> pieces_of(const ModelLayout& layout, const Part& part);

/// For each block whether it is a barrier block. `barriers` as in the deck: none, all, attention (the attention
/// sublayers), upper (the upper half: whole layers and the head, from the layer where the forward pass is nearest to
/// half of its FLOP), sensitivity (none to begin with), or names and patterns of blocks. `flop`: by block. Throws
/// InputError on a pattern that matches nothing.
std::vector<bool> barrier_blocks(const ModelLayout& layout, const std::vector<BlockFlop>& flop,
                                 const std::vector<std::string>& barriers);

}  // namespace hat
