#pragma once
#include <string>

#include "gpu.hpp"

namespace hat::check_device {

enum class Training {
  learns,
  learns_nothing,  ///< the loss of a batch that is trained on again and again does not fall
  left_out,        ///< the card has too little memory
};

/// Trains the model of that name (gpt2_124m or llama_1_3b, the decks inputs/bench_NAME.toml; tiny for tests) on one
/// batch of random tokens, in bf16, by plain gradient descent on the card, and prints what came of it:
///
///   training NAME HAT TOKENS/S tokens/s PARAMETERS parameters (...)
///
/// Throws Error where there is no such model.
Training measure_training(Gpu& gpu, const std::string& name);

}  // namespace hat::check_device
