#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "hat/dataset/dataset.hpp"
#include "hat/model/transformer.hpp"

namespace hat {

/// Continues `prompt` by at most `tokens` tokens, fewer when the model ends the text itself. Returns the prompt and its
/// continuation. Each token is drawn from softmax(logits / temperature); temperature 0 takes the likeliest (the first
/// of equals). The context is the newest max_length tokens. Equal arguments give equal text.
///
/// The whole context is computed again for every token: nothing is cached between passes.
///
/// `goes_on` is asked before every token whether to stop early; empty: never. Throws Error when the logits are not
/// finite.
std::string generate_text(Transformer& model, const ParameterPointers& parameters, const Tokenizer& tokenizer,
                          const std::string& prompt, int64_t tokens, double temperature, uint64_t seed,
                          const std::function<bool()>& goes_on = {});

}  // namespace hat
