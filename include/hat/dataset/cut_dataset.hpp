#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "hat/dataset/text_source.hpp"

namespace hat {

/// What becomes one split of a dataset: documents of these lengths in tokens of the byte tokenizer (at least 2: a byte
/// and end-of-text), cut from `text` in this order.
struct CutSplit {
  std::vector<int64_t> lengths;
  TextSource& text;
};

/// Writes a dataset whose documents have given lengths. Throws Error naming the file when writing fails.
void write_cut_dataset(const std::filesystem::path& path, const CutSplit& train, const CutSplit& validation);

}  // namespace hat
