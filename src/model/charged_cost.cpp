#include "hat/model/charged_cost.hpp"

#include "hat/model/layout.hpp"

namespace hat {

namespace {

ModelConfig charged_model(const Deck& deck) {
  switch (deck.emulation.cost_of) {
    case CostModel::own:
      break;
    case CostModel::gpt2_124m:
      return {.family = ModelFamily::gpt2, .width = 768, .layers = 12, .heads = 12, .vocabulary = 50257, .tied = true};
    case CostModel::llama_1b:
      return {.width = 2048,
              .layers = 16,
              .heads = 32,
              .kv_heads = 8,
              .mlp_width = 8192,
              .vocabulary = 128256,
              .tied = true};
  }
  return deck.model;
}

}  // namespace

ChargedCost::ChargedCost(const Deck& deck) {
  const ModelLayout layout = make_layout(deck.model);
  const ModelConfig charged = charged_model(deck);
  const ModelLayout charged_layout = make_layout(charged);
  const std::vector<BlockFlop> from = count_flop(charged, charged_layout);
  const double layers = static_cast<double>(charged.layers) / static_cast<double>(deck.model.layers);
  const double scale = deck.emulation.length_scale;
  const auto charge = [&](const BlockFlop& block, double times) {
    blocks_.push_back(
        {.per_token = times * scale * block.per_token, .per_square = times * scale * scale * block.per_square});
  };
  // The layers of a model cost all the same: its first attention and MLP stand for them.
  charge(from.front(), 1);
  for (int64_t layer = 0; layer < deck.model.layers; ++layer) {
    charge(from[1], layers);
    charge(from[2], layers);
  }
  charge(from.back(), 1);
  total_ = sum(blocks_);
  bytes_per_byte_ = static_cast<double>(charged_layout.size()) / static_cast<double>(layout.size());
  exchange_bytes_per_byte_ =
      scale * static_cast<double>(key_value_elements(charged)) / static_cast<double>(key_value_elements(deck.model));
}

double ChargedCost::flop(int64_t begin, int64_t end) const {
  const auto b = static_cast<double>(begin);
  const auto e = static_cast<double>(end);
  return total_.of(e - b, (e - b) * (e + b));
}

}  // namespace hat
