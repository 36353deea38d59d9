#include "hat/dataset/dataset_writer.hpp"

#include <array>
#include <cstring>

#include "hat/core/build_info.hpp"
#include "hat/core/error.hpp"
#include "hat/dataset/dataset_format.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace {
// Elements buffered and written at once; also the chunk size, so that every write but the last fills a chunk.
constexpr int64_t kTokenChunk = int64_t{1} << 18;
constexpr int64_t kOffsetChunk = int64_t{1} << 16;

/// Appends to an extendible array chunk by chunk, keeping the checksum of the bytes as stored.
template <class T>
class ChunkedAppender {
 public:
  ChunkedAppender(hdf5::Group& group, const std::string& name, int64_t chunk)
      : array_(group.create_extendible(name, hdf5::ElementOf<T>::value, {0, 1, true}, chunk)),
        chunk_(static_cast<size_t>(chunk)) {
    buffer_.reserve(chunk_);
  }
  void add(T value) {
    buffer_.push_back(value);
    if (buffer_.size() == chunk_) flush();
  }
  void finish() {
    flush();
    array_.set_text("checksum", checksum_text(checksum_.value()));
  }
  uint64_t checksum() const { return checksum_.value(); }

 private:
  void flush() {
    if (buffer_.empty()) return;
    checksum_.add(buffer_.data(), buffer_.size() * sizeof(T));
    array_.append(static_cast<int64_t>(buffer_.size()), buffer_.data());
    buffer_.clear();
  }
  hdf5::Array array_;
  size_t chunk_;
  std::vector<T> buffer_;
  Checksum checksum_;
};

/// Tokens in the smallest type that holds the vocabulary.
class TokenAppender {
 public:
  TokenAppender(hdf5::Group& group, int32_t vocabulary) {
    switch (dataset_format::token_element(vocabulary)) {
      case hdf5::Element::uint8:
        small_ = std::make_unique<ChunkedAppender<uint8_t>>(group, "tokens", kTokenChunk);
        break;
      case hdf5::Element::uint16:
        medium_ = std::make_unique<ChunkedAppender<uint16_t>>(group, "tokens", kTokenChunk);
        break;
      default:
        large_ = std::make_unique<ChunkedAppender<int32_t>>(group, "tokens", kTokenChunk);
    }
  }
  void add(int32_t token) {
    if (medium_) {
      medium_->add(static_cast<uint16_t>(token));
    } else if (small_) {
      small_->add(static_cast<uint8_t>(token));
    } else {
      large_->add(token);
    }
  }
  uint64_t finish() {
    if (small_) return small_->finish(), small_->checksum();
    if (medium_) return medium_->finish(), medium_->checksum();
    return large_->finish(), large_->checksum();
  }

 private:
  std::unique_ptr<ChunkedAppender<uint8_t>> small_;
  std::unique_ptr<ChunkedAppender<uint16_t>> medium_;
  std::unique_ptr<ChunkedAppender<int32_t>> large_;
};

struct Counts {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t text_bytes = 0;
};

struct SplitWriter {
  SplitWriter(hdf5::Group split_group, int32_t vocabulary)
      : group(std::move(split_group)), tokens(group, vocabulary), offsets(group, "offsets", kOffsetChunk) {
    offsets.add(0);
  }
  hdf5::Group group;
  TokenAppender tokens;
  ChunkedAppender<int64_t> offsets;
  int64_t document_begin = 0;
};
}  // namespace

struct DatasetWriter::Impl {
  Impl(const std::filesystem::path& final_path, const Tokenizer& used)
      : path(final_path),
        partial(final_path.string() + ".partial"),
        tokenizer(used),
        file(hdf5::File::create(partial)) {
    for (const char* name : dataset_format::kSplitNames) {
      splits.push_back(std::make_unique<SplitWriter>(file.root().create_group(name), used.vocabulary()));
    }
  }
  SplitWriter& of(Split split) { return *splits[static_cast<size_t>(split)]; }
  Counts& counts_of(Split split) { return counts[static_cast<size_t>(split)]; }

  std::filesystem::path path;
  std::filesystem::path partial;
  const Tokenizer& tokenizer;
  hdf5::File file;
  std::vector<std::unique_ptr<SplitWriter>> splits;  // none once it is finished
  std::array<Counts, 2> counts;
  std::vector<int32_t> encoded;
  bool finished = false;
};

DatasetWriter::DatasetWriter(const std::filesystem::path& path, const Tokenizer& tokenizer,
                             const std::vector<std::string>& sources)
    : impl_(std::make_unique<Impl>(path, tokenizer)) {
  hdf5::Group root = impl_->file.root();
  root.set_text("format", dataset_format::kFormat);
  root.set_number("format_version", dataset_format::kVersion);
  root.set_text("written_by", fmt::format("hat {} ({})", build_info().version, build_info().revision));
  root.write_strings("sources", sources);
  hdf5::Group identity = root.create_group("tokenizer");
  identity.set_text("name", tokenizer.name());
  identity.set_number<int64_t>("vocabulary", tokenizer.vocabulary());
  identity.set_number<int64_t>("end_of_text", tokenizer.end_of_text());
}

DatasetWriter::~DatasetWriter() {
  if (impl_->finished) return;
  const std::filesystem::path partial = impl_->partial;
  impl_.reset();
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
}

void DatasetWriter::add_text(Split split, std::string_view text) {
  SplitWriter& writer = impl_->of(split);
  impl_->encoded.clear();
  impl_->tokenizer.encode(text, impl_->encoded);
  for (const int32_t token : impl_->encoded) writer.tokens.add(token);
  Counts& counts = impl_->counts_of(split);
  counts.tokens += std::ssize(impl_->encoded);
  counts.text_bytes += std::ssize(text);
}

int64_t DatasetWriter::end_document(Split split) {
  SplitWriter& writer = impl_->of(split);
  writer.tokens.add(impl_->tokenizer.end_of_text());
  Counts& counts = impl_->counts_of(split);
  counts.tokens += 1;
  counts.documents += 1;
  writer.offsets.add(counts.tokens);
  return counts.tokens - std::exchange(writer.document_begin, counts.tokens);
}

int64_t DatasetWriter::documents(Split split) const { return impl_->counts_of(split).documents; }
int64_t DatasetWriter::tokens(Split split) const { return impl_->counts_of(split).tokens; }
int64_t DatasetWriter::text_bytes(Split split) const { return impl_->counts_of(split).text_bytes; }

std::string DatasetWriter::finish() {
  uint64_t checksums[4] = {};
  for (size_t i = 0; i < 2; ++i) {
    SplitWriter& writer = *impl_->splits[i];
    checksums[2 * i] = writer.tokens.finish();
    writer.offsets.finish();
    checksums[2 * i + 1] = writer.offsets.checksum();
    writer.group.set_number("text_bytes", impl_->counts[i].text_bytes);
  }
  std::string identity = dataset_format::identity(checksums);
  impl_->file.root().set_text("identity", identity);
  impl_->splits.clear();
  impl_->file.close();
  rename_durably(impl_->partial, impl_->path);
  impl_->finished = true;
  return identity;
}

}  // namespace hat
