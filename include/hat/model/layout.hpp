#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hat/config/deck.hpp"

namespace hat {

enum class InitKind { zeros, ones, normal };

/// One named tensor inside a block. All tensors are fp32, row-major, (rows, columns); vectors have one column.
struct TensorSpec {
  std::string name;  ///< inside its block, e.g. "q.weight"
  int64_t rows = 0;
  int64_t columns = 1;
  int64_t offset = 0;       ///< first element inside the block
  bool is_vector = false;   ///< shown as a 1-d tensor outside
  bool decay = false;       ///< weight decay applies (matrices)
  bool orthogonal = false;  ///< hidden matrix: the one Muon updates; must not be split between servers under Muon
  InitKind init = InitKind::zeros;
  double init_std = 0.0;
  int64_t size() const { return rows * columns; }
};

/// The tensors of one sublayer: unit of versioning, barriers and transfer. One contiguous run of fp32 values.
struct BlockSpec {
  std::string name;  ///< "embedding", "layers.3.attention", "layers.3.mlp", "head"
  std::vector<TensorSpec> tensors;
  int64_t size = 0;  ///< elements
};

/// Blocks in forward order. Everything that handles parameters (servers, pulls, checkpoints) works from this table.
struct ModelLayout {
  std::vector<BlockSpec> blocks;
  int64_t size() const;
};

/// `config.vocabulary` must be set (> 0). Throws InputError("model", key, reason) on impossible sizes.
ModelLayout make_layout(const ModelConfig& config);

/// Fills elements [begin, begin + values.size()) of block `block` with their start values. Depends only on the seed
/// and the element, not on how the parameters are split.
void initialize(const ModelLayout& layout, int64_t block, int64_t begin, float* values, int64_t count, uint64_t seed);

/// The sizes that follow from the config where it leaves them open (kv_heads, mlp_width).
int64_t kv_heads(const ModelConfig& config);
int64_t mlp_width(const ModelConfig& config);
/// Numbers that the keys and values of a token are, in all layers.
int64_t key_value_elements(const ModelConfig& config);

}  // namespace hat
