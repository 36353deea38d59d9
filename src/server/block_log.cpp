#include "server/block_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hat/core/text.hpp"

namespace hat {

using nlohmann::json;

namespace {

json by_block(const std::vector<BlockSensitivity>& blocks, double BlockSensitivity::*measure) {
  json list = json::array();
  for (const BlockSensitivity& block : blocks) {
    list.push_back(std::isfinite(block.*measure) ? json(block.*measure) : json(nullptr));
  }
  return list;
}

}  // namespace

void BlockLog::Count::add(const std::vector<int64_t>& counts) {
  by_block.resize(std::max(by_block.size(), counts.size()), 0);
  for (size_t block = 0; block < counts.size(); ++block) {
    by_block[block] += counts[block];
    sum += counts[block];
  }
}

std::vector<std::string> BlockLog::names_of(const std::vector<bool>& is_barrier) const {
  std::vector<std::string> names;
  for (size_t block = 0; block < is_barrier.size(); ++block) {
    if (is_barrier[block]) names.push_back(plan_.layout.blocks[block].name);
  }
  return names;
}

void BlockLog::step(const StepBlocks& blocks, json& line) {
  ++steps_;
  if (plan_.records_sketches()) {
    barriers_.add({blocks.is_barrier.begin(), blocks.is_barrier.end()});
    pushes_.add(blocks.pushes);
    against_.add(blocks.pushes_against);
    line["barrier_blocks"] = names_of(blocks.is_barrier);
    line["sensitivity"] = {{"consecutive", by_block(blocks.sensitivity, &BlockSensitivity::consecutive)},
                           {"pairwise", by_block(blocks.sensitivity, &BlockSensitivity::pairwise)},
                           {"article_pushes", by_block(blocks.sensitivity, &BlockSensitivity::article_pushes)},
                           {"article_steps", by_block(blocks.sensitivity, &BlockSensitivity::article_steps)}};
    line["pushes"] = blocks.pushes;
    line["pushes_against"] = blocks.pushes_against;
  }
  if (plan_.deck.staleness_limit.is_set()) {
    over_limit_.add(blocks.pushes_over_limit);
    recomputed_ += blocks.recomputed;
    line["pushes_over_limit"] = blocks.pushes_over_limit;
    line["recomputed"] = blocks.recomputed;
  }
}

std::string BlockLog::text_of(const Count& count) const {
  std::string list;
  for (size_t block = 0; block < count.by_block.size(); ++block) {
    if (count.by_block[block] == 0) continue;
    list += fmt::format(", {} {}", plan_.layout.blocks[block].name, with_commas(count.by_block[block]));
  }
  return with_commas(count.sum) + (list.empty() ? "" : fmt::format(" ({})", list.substr(2)));
}

std::vector<std::string> BlockLog::summary() const {
  std::vector<std::string> lines;
  const auto blocks = static_cast<int64_t>(plan_.layout.blocks.size());
  if (plan_.records_sketches()) {
    lines.push_back(
        fmt::format("blocks that were barriers, in steps: {} of {}", text_of(barriers_), with_commas(steps_ * blocks)));
    lines.push_back(fmt::format("pushes against the sum of their step's others: {} of {}", text_of(against_),
                                with_commas(pushes_.sum)));
  }
  if (plan_.deck.staleness_limit.is_set()) {
    lines.push_back(fmt::format("pushes over the staleness limit: {}; units computed again: {}", text_of(over_limit_),
                                with_commas(recomputed_)));
  }
  return lines;
}

}  // namespace hat
