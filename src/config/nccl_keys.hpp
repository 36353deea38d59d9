#pragma once
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

/// Keys of `[comm.nccl]`: how GPU workers sum gradients of barrier blocks.
namespace hat {

void add_nccl_keys(OptionSet& options, NcclConfig& nccl);

}  // namespace hat
