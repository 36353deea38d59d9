#pragma once
#include <functional>
#include <stdexcept>
#include <vector>

#include "hat/model/memory_exchange.hpp"
#include "model_support.hpp"

/// A gang in one process (hat/model/memory_exchange.hpp), as tests want it.
namespace hat::test {

/// The part of a batch of one document that a member computes.
inline PackedBatch range_of(const PackedBatch& whole, const GangRange& range) {
  PackedBatch part;
  part.inputs.assign(whole.inputs.begin() + range.begin(), whole.inputs.begin() + range.end());
  part.targets.assign(whole.targets.begin() + range.begin(), whole.targets.begin() + range.end());
  part.offsets = {0, static_cast<int32_t>(range.tokens())};
  part.range = range;
  return part;
}

/// hat::run_gang with nothing rounded on its way; every layer must have been released.
inline void run_gang(const std::vector<int64_t>& bounds, const ModelConfig& config, Element stored,
                     const std::function<void(const GangRange&, MemoryExchange&)>& work) {
  hat::run_gang(bounds, config, stored, {.forward = stored, .backward = Element::fp32},
                [&](const GangRange& range, MemoryExchange& exchange) {
                  work(range, exchange);
                  if (!exchange.holds_nothing()) throw std::logic_error("a layer was not released");
                });
}

}  // namespace hat::test
