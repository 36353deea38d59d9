#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hat/dataset/dataset.hpp"

namespace hat {

/// Writes a dataset.h5 front to back with bounded memory. The file grows under <path>.partial and gets its name in
/// `finish`; when the writer dies without it, the partial file is removed and nothing stands under the name.
/// Throws Error naming the file when writing fails (full disk).
class DatasetWriter {
 public:
  DatasetWriter(const std::filesystem::path& path, const Tokenizer& tokenizer, const std::vector<std::string>& sources);
  ~DatasetWriter();
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  /// Text of the document that is being written to `split`; may come in pieces. One document at a time.
  /// Pieces are encoded one by one: a tokenizer whose tokens may span any cut has to be given whole documents.
  void add_text(Split split, std::string_view text);
  /// Ends it with end-of-text; returns its length in tokens. A document without text must not be ended.
  int64_t end_document(Split split);

  int64_t documents(Split split) const;
  int64_t tokens(Split split) const;
  int64_t text_bytes(Split split) const;

  /// Makes the dataset durable under its final name. Returns its identity.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
