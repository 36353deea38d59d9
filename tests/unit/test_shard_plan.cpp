#include <algorithm>
#include <cmath>
#include <set>

#include "hat/model/shard_plan.hpp"
#include "io_support.hpp"
#include "model_support.hpp"

namespace hat {
namespace {

std::vector<ModelConfig> models() {
  ModelConfig uneven = test::small_llama();  // nothing divides anything
  uneven.width = 42;
  uneven.heads = 7;
  uneven.kv_heads = 1;
  uneven.mlp_width = 101;
  uneven.vocabulary = 257;
  uneven.layers = 3;
  ModelConfig large_vocabulary = test::small_gpt2();
  large_vocabulary.vocabulary = 5003;
  ModelConfig tied = test::small_llama();
  tied.tied = true;
  tied.layers = 1;
  return {test::small_llama(), test::small_gpt2(), uneven, large_vocabulary, tied};
}

constexpr OptimizerKind kOptimizers[] = {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon};

int64_t servers_elements(const ShardPlan& plan, size_t server) {
  int64_t count = 0;
  for (const int64_t part : plan.parts_of_server[server]) count += plan.parts[static_cast<size_t>(part)].count;
  return count;
}

/// Longest run that must stay together: a row, or under Muon a hidden matrix.
int64_t longest_unit(const ModelLayout& layout, OptimizerKind optimizer) {
  int64_t longest = 0;
  for (const BlockSpec& block : layout.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const bool whole = optimizer == OptimizerKind::muon && tensor.orthogonal;
      longest = std::max(longest, whole ? tensor.size() : tensor.columns);
    }
  }
  return longest;
}

/// Calls check(layout, optimizer, servers, plan) for many models, optimizers and server counts.
template <class Check>
void for_many_plans(Check check) {
  for (const ModelConfig& model : models()) {
    const ModelLayout layout = make_layout(model);
    for (const OptimizerKind optimizer : kOptimizers) {
      for (const int servers : {1, 2, 3, 4, 5, 7, 16, 61}) {
        check(layout, optimizer, servers, plan_shards(layout, servers, optimizer));
      }
    }
  }
}

TEST(ShardPlan, EveryElementHasOneOwner) {
  for_many_plans([](const ModelLayout& layout, OptimizerKind, int servers, const ShardPlan& plan) {
    ASSERT_EQ(plan.parts_of_block.size(), layout.blocks.size());
    ASSERT_EQ(plan.parts_of_server.size(), static_cast<size_t>(servers));
    int last_server = 0;
    size_t next_part = 0;
    for (size_t block = 0; block < layout.blocks.size(); ++block) {
      int64_t end = 0;
      std::set<int> owners;
      for (const int64_t index : plan.parts_of_block[block]) {
        EXPECT_EQ(static_cast<size_t>(index), next_part++) << "parts stand in layout order";
        const Part& part = plan.parts[static_cast<size_t>(index)];
        EXPECT_EQ(part.block, static_cast<int64_t>(block));
        EXPECT_EQ(part.begin, end);
        EXPECT_GT(part.count, 0);
        EXPECT_GE(part.server, last_server) << "a server owns a contiguous stretch";
        EXPECT_TRUE(owners.insert(part.server).second) << "at most one part of a block on a server";
        last_server = part.server;
        end = part.begin + part.count;
      }
      EXPECT_EQ(end, layout.blocks[block].size);
    }
    EXPECT_EQ(next_part, plan.parts.size());
    size_t listed = 0;
    for (size_t server = 0; server < plan.parts_of_server.size(); ++server) {
      for (const int64_t index : plan.parts_of_server[server]) {
        EXPECT_EQ(plan.parts[static_cast<size_t>(index)].server, static_cast<int>(server));
        ++listed;
      }
    }
    EXPECT_EQ(listed, plan.parts.size());
  });
}

// Each cut is the allowed one nearest to the ideal: at most half a row (Muon: half a matrix) away from it.
TEST(ShardPlan, ShardsAreEvenUpToHalfARowOrMatrixAtEachEnd) {
  for_many_plans([](const ModelLayout& layout, OptimizerKind optimizer, int servers, const ShardPlan& plan) {
    const double allowed = 0.5 * static_cast<double>(longest_unit(layout, optimizer)) + 1.0;
    int64_t cut = 0;
    for (size_t server = 0; server < plan.parts_of_server.size(); ++server) {
      cut += servers_elements(plan, server);
      const double ideal = static_cast<double>(layout.size()) * static_cast<double>(server + 1) / servers;
      EXPECT_LE(std::abs(static_cast<double>(cut) - ideal), allowed) << "behind server " << server << " of " << servers;
    }
  });
}

TEST(ShardPlan, PiecesCoverPartsByWholeRows) {
  for_many_plans([](const ModelLayout& layout, OptimizerKind optimizer, int, const ShardPlan& plan) {
    for (const Part& part : plan.parts) {
      int64_t offset = 0;
      for (const TensorPiece& piece : pieces_of(layout, part)) {
        const TensorSpec& tensor =
            layout.blocks[static_cast<size_t>(part.block)].tensors[static_cast<size_t>(piece.tensor)];
        EXPECT_EQ(piece.block, part.block);
        EXPECT_EQ(piece.part_offset, offset);
        EXPECT_EQ(piece.columns, tensor.columns);
        EXPECT_EQ(part.begin + piece.part_offset, tensor.offset + piece.first_row * tensor.columns);
        EXPECT_GE(piece.rows, 1);
        EXPECT_LE(piece.first_row + piece.rows, tensor.rows);
        if (optimizer == OptimizerKind::muon && tensor.orthogonal) {
          EXPECT_EQ(piece.rows, tensor.rows) << "a hidden matrix was cut under Muon: " << tensor.name;
        }
        offset += piece.size();
      }
      EXPECT_EQ(offset, part.count);
    }
  });
}

TEST(ShardPlan, LargeBlocksAreSplit) {
  ModelConfig model = test::small_gpt2();
  model.vocabulary = 5003;
  const ModelLayout layout = make_layout(model);
  const ShardPlan plan = plan_shards(layout, 4, OptimizerKind::muon);
  EXPECT_GE(plan.parts_of_block[0].size(), 3U) << "the embedding is most of this model";
}

// --- barriers ---

/// Where layers cost `layer` each, half of it their attention, and the head `head`.
std::vector<BlockFlop> flop_of(const ModelLayout& layout, double layer = 10, double head = 1) {
  std::vector<BlockFlop> flop(layout.blocks.size(), BlockFlop{.per_token = layer / 2, .per_square = 0});
  flop.front().per_token = 0;
  flop.back().per_token = head;
  return flop;
}

std::vector<std::string> barrier_names(const ModelLayout& layout, const std::vector<std::string>& barriers,
                                       double head = 1) {
  const std::vector<bool> is_barrier = barrier_blocks(layout, flop_of(layout, 10, head), barriers);
  EXPECT_EQ(is_barrier.size(), layout.blocks.size());
  std::vector<std::string> names;
  for (size_t block = 0; block < is_barrier.size(); ++block) {
    if (is_barrier[block]) names.push_back(layout.blocks[block].name);
  }
  return names;
}

ModelLayout layers(int64_t count, bool tied = false) {
  ModelConfig model = test::small_llama();
  model.layers = count;
  model.tied = tied;
  return make_layout(model);
}

using Names = std::vector<std::string>;

TEST(BarrierBlocks, Keywords) {
  const ModelLayout layout = layers(3);
  EXPECT_EQ(barrier_names(layout, {}), Names{});
  EXPECT_EQ(barrier_names(layout, {"none"}), Names{});
  EXPECT_EQ(barrier_names(layout, {"all"}).size(), layout.blocks.size());
  EXPECT_EQ(barrier_names(layout, {"attention"}),
            (Names{"layers.0.attention", "layers.1.attention", "layers.2.attention"}));
  EXPECT_EQ(barrier_names(layout, {"upper"}), (Names{"layers.2.attention", "layers.2.mlp", "head"}));
  EXPECT_EQ(barrier_names(layers(4), {"upper"}),
            (Names{"layers.2.attention", "layers.2.mlp", "layers.3.attention", "layers.3.mlp", "head"}));
  EXPECT_EQ(barrier_names(layers(4), {"upper"}, /*head=*/18), (Names{"layers.3.attention", "layers.3.mlp", "head"}))
      << "GPT-2 124M's head takes 31 % of its time";
  EXPECT_EQ(barrier_names(layers(1), {"upper"}), Names{"head"});
}

// The tied matrix lies in the embedding, which is used first: never free.
TEST(BarrierBlocks, UpperNeverHoldsATiedHead) {
  const Names names = barrier_names(layers(2, /*tied=*/true), {"upper"});
  EXPECT_EQ(std::count(names.begin(), names.end(), "embedding"), 0);
  EXPECT_EQ(std::count(names.begin(), names.end(), "layers.1.mlp"), 1);
}

TEST(BarrierBlocks, NamesAndPatternsAddUp) {
  const ModelLayout layout = layers(12);
  EXPECT_EQ(barrier_names(layout, {"layers.1.mlp"}), Names{"layers.1.mlp"}) << "not layers.11.mlp";
  EXPECT_EQ(barrier_names(layout, {"layers.1?.mlp"}), (Names{"layers.10.mlp", "layers.11.mlp"}));
  EXPECT_EQ(barrier_names(layout, {"*.mlp"}).size(), 12U);
  EXPECT_EQ(barrier_names(layout, {"embedding", "head", "layers.0.*"}),
            (Names{"embedding", "layers.0.attention", "layers.0.mlp", "head"}));
  EXPECT_EQ(barrier_names(layout, {"head", "head"}), Names{"head"});
}

TEST(BarrierBlocks, WhatMatchesNothingIsRefusedWithASuggestion) {
  const ModelLayout layout = layers(3);
  const auto refuses = [&layout](const std::string& barrier, const std::vector<std::string>& parts) {
    test::expect_input_error([&] { barrier_blocks(layout, flop_of(layout), {"head", barrier}); }, parts);
  };
  refuses("layers.1.mpl", {"barriers: 'layers.1.mpl'", "did you mean 'layers.1.mlp'?"});
  refuses("atention", {"did you mean 'attention'?"});
  refuses("Upper", {"did you mean 'upper'?"});
  refuses("layers.3.mlp", {"'layers.3.mlp' matches no block of this model"});
  refuses("", {"'' matches no block"});
}

}  // namespace
}  // namespace hat
