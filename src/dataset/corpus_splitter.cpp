#include "hat/core/error.hpp"
#include "hat/core/random.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/corpus.hpp"

namespace hat {

namespace {
constexpr uint64_t kSplitStream = 0x53504c4954ULL << 24;
}

CorpusSplitter::CorpusSplitter(DatasetWriter& writer, double validation_fraction, uint64_t seed)
    : writer_(writer), validation_fraction_(validation_fraction), seed_(seed) {}

void CorpusSplitter::add_text(std::string_view text) {
  if (text.empty()) return;
  // The newline at the end is held back until it is clear whether it is the last byte of the document.
  const bool had_newline = newline_pending_;
  newline_pending_ = text.ends_with('\n');
  if (newline_pending_) text.remove_suffix(1);
  if (!had_newline && text.empty()) return;
  if (!in_document_) {
    in_document_ = true;
    const double u = random_uniform(seed_, kSplitStream, static_cast<uint64_t>(documents_));
    split_ = u < validation_fraction_ ? Split::validation : Split::train;
  }
  if (had_newline) writer_.add_text(split_, "\n");
  if (!text.empty()) writer_.add_text(split_, text);
}

void CorpusSplitter::end_document() {
  newline_pending_ = false;
  if (!in_document_) {
    ++empty_documents_;
    return;
  }
  in_document_ = false;
  ++documents_;
  histogram_.add(writer_.end_document(split_));
}

void CorpusSplitter::check_splits(const std::string& where) const {
  const std::string found =
      fmt::format("{} found, {} skipped", counted(documents_, "document"), counted(empty_documents_, "empty one"));
  if (documents_ == 0) throw InputError(where, "", fmt::format("there is no text: {}", found));
  if (documents_ == 1) {
    throw InputError(where, "", fmt::format("{}: one for training and one for validation are needed", found));
  }
  for (const Split split : {Split::train, Split::validation}) {
    if (writer_.documents(split) > 0) continue;
    throw InputError(
        where, "validation",
        fmt::format("no document falls into {} with the fraction {} and seed {} ({}): change them",
                    split == Split::train ? "training" : "validation", validation_fraction_, seed_, found));
  }
}

}  // namespace hat
