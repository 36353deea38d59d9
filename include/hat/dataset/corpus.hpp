#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hat/dataset/dataset_writer.hpp"
#include "hat/dataset/length_histogram.hpp"

namespace hat {

/// Takes the documents of a corpus, each in one or more pieces.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void add_text(std::string_view text) = 0;
  virtual void end_document() = 0;
};

struct CorpusOptions {
  std::optional<std::string>
      separator;                     ///< a line equal to it separates documents of a text file; none: file = document
  std::vector<std::string> include;  ///< globs for files found in folders, on the path below the folder or the name
  std::vector<std::string> exclude;
  std::string text_key = "text";  ///< of a JSONL line
};

struct CorpusFile {
  std::filesystem::path path;
  int64_t size_bytes = 0;
  bool is_jsonl = false;  ///< named .jsonl or .ndjson, .gz behind it or not
};

/// The path behind links, or the path itself where links end in no path (a pipe in /dev/stdin).
std::filesystem::path resolved(const std::filesystem::path& path);

/// The files behind the inputs, in order; those of a folder (searched to any depth, hidden ones left out) sorted by
/// path. Throws InputError for inputs that do not exist, folders without a matching file, and files given twice.
std::vector<CorpusFile> find_corpus_files(const std::vector<std::string>& inputs, const CorpusOptions& options);

/// Streams the documents of one file into the sink. `progress` gets the bytes of the file consumed so far.
/// Memory is bounded for text; a line of JSONL is held whole. Throws InputError("<file>:<line>", ...) for bad JSON.
void read_corpus_file(const CorpusFile& file, const CorpusOptions& options, DocumentSink& sink,
                      const std::function<void(int64_t)>& progress);

/// Sends documents to the splits of a dataset: document i (empty ones not counted) is one of validation if a
/// counter-based hash of (seed, i) falls below the fraction. One newline at the end of a document is removed; documents
/// that are empty then are skipped and counted.
class CorpusSplitter final : public DocumentSink {
 public:
  CorpusSplitter(DatasetWriter& writer, double validation_fraction, uint64_t seed);
  void add_text(std::string_view text) override;
  void end_document() override;

  int64_t documents() const { return documents_; }
  int64_t empty_documents() const { return empty_documents_; }
  const LengthHistogram& histogram() const { return histogram_; }
  /// Throws InputError(where, ...) unless both splits have a document.
  void check_splits(const std::string& where) const;

 private:
  DatasetWriter& writer_;
  double validation_fraction_;
  uint64_t seed_;
  Split split_ = Split::train;
  bool in_document_ = false;
  bool newline_pending_ = false;
  int64_t documents_ = 0;
  int64_t empty_documents_ = 0;
  LengthHistogram histogram_;
};

}  // namespace hat
