#include "hat/dataset/cut_dataset.hpp"

#include "hat/core/error.hpp"
#include "hat/dataset/dataset_writer.hpp"

namespace hat {

namespace {

void add(DatasetWriter& writer, Split split, const CutSplit& documents) {
  for (const int64_t length : documents.lengths) {
    if (length < 2) throw Error(fmt::format("a document of {} tokens has no text", length));
    writer.add_text(split, documents.text.take(length - 1));
    writer.end_document(split);
  }
}

}  // namespace

void write_cut_dataset(const std::filesystem::path& path, const CutSplit& train, const CutSplit& validation) {
  const auto tokenizer = make_byte_tokenizer();
  DatasetWriter writer(path, *tokenizer, {"cut to given lengths"});
  add(writer, Split::train, train);
  add(writer, Split::validation, validation);
  writer.finish();
}

}  // namespace hat
