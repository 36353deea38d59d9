#pragma once
#include "hat/config/deck.hpp"
#include "hat/model/compute_options.hpp"

namespace hat {

/// Seconds that the matrix products of one training step over some tokens take, in each arithmetic.
struct ProductTimes {
  double fp32_s = 0;
  double bf16_s = 0;
};

/// Times forward, input gradient and weight gradient of every distinct matrix of the model, with random values, and
/// counts each as often as the model has it. On device `device_index` of the options' kind. Takes up to about a second:
/// few rows, and of a large matrix a part.
ProductTimes measure_products(const ModelConfig& config, const ComputeOptions& options, int device_index = 0);

}  // namespace hat
