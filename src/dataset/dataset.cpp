#include "hat/dataset/dataset.hpp"

#include <algorithm>
#include <optional>

#include "hat/core/error.hpp"
#include "hat/dataset/dataset_format.hpp"

namespace hat {

namespace {
/// One split: offsets in memory (8 bytes per document), tokens on disk.
struct SplitData {
  hdf5::Array tokens;
  std::vector<int64_t> offsets;
  int64_t text_bytes = 0;
};

std::string position_text(int64_t document, int64_t documents) {
  if (document == 0) return fmt::format("document 0 (the first of {})", documents);
  if (document == documents - 1) return fmt::format("document {} (the last)", document);
  return fmt::format("document {} of {}", document, documents);
}

/// Offsets must rise from 0 to the number of tokens, strictly: every document has at least its end-of-text.
void check_offsets(const std::string& file, const std::string& name, const std::vector<int64_t>& offsets,
                   int64_t token_count) {
  if (offsets.size() < 2) throw InputError(file, name, "there are no documents");
  const auto documents = static_cast<int64_t>(offsets.size()) - 1;
  if (offsets.front() != 0) throw InputError(file, name, fmt::format("the first is {}, not 0", offsets.front()));
  if (std::all_of(offsets.begin(), offsets.end(), [](int64_t offset) { return offset == 0; })) {
    throw InputError(file, name, fmt::format("all {} documents have no tokens", documents));
  }
  for (int64_t i = 0; i < documents; ++i) {
    const auto at = static_cast<size_t>(i);
    if (offsets[at + 1] == offsets[at]) {
      throw InputError(file, name, fmt::format("{} has no tokens", position_text(i, documents)));
    }
    if (offsets[at + 1] < offsets[at]) {
      throw InputError(file, name, fmt::format("{} ends before it begins", position_text(i, documents)));
    }
  }
  if (offsets.back() != token_count) {
    throw InputError(
        file, name, fmt::format("the documents end at token {}, but there are {} tokens", offsets.back(), token_count));
  }
}

void check_format(const hdf5::Group& root) {
  const std::string& file = root.file();
  if (!root.has_attribute("format") || root.text("format") != dataset_format::kFormat) {
    throw InputError(file, "", "is an HDF5 file, but not a dataset of hat (attribute 'format')");
  }
  if (const auto version = root.number<int64_t>("format_version"); version != dataset_format::kVersion) {
    throw InputError(file, "attribute 'format_version'",
                     fmt::format("is {}, this build reads {}", version, dataset_format::kVersion));
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const hdf5::Group& root) {
  const hdf5::Group stored = root.open_group("tokenizer");
  auto tokenizer = make_tokenizer(stored.text("name"), root.file());
  if (stored.number<int64_t>("vocabulary") != tokenizer->vocabulary() ||
      stored.number<int64_t>("end_of_text") != tokenizer->end_of_text()) {
    throw InputError(
        root.file(), "/tokenizer",
        fmt::format("vocabulary or end-of-text differ from those of the tokenizer '{}'", tokenizer->name()));
  }
  return tokenizer;
}

SplitData load_split(const hdf5::Group& root, Split split) {
  const hdf5::Group group = root.open_group(dataset_format::split_name(split));
  SplitData data{group.open_array("tokens"), group.read_vector<int64_t>("offsets"),
                 group.number<int64_t>("text_bytes")};
  check_offsets(root.file(), group.name() + "/offsets", data.offsets, data.tokens.rows());
  return data;
}

uint64_t checksum_tokens(const hdf5::Array& tokens) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  const size_t size = hdf5::element_size(tokens.element());
  std::vector<unsigned char> buffer(static_cast<size_t>(std::min(kPiece, tokens.rows())) * size);
  Checksum checksum;
  for (int64_t row = 0; row < tokens.rows(); row += kPiece) {
    const int64_t rows = std::min(kPiece, tokens.rows() - row);
    tokens.read_raw(row, rows, tokens.element(), buffer.data());
    checksum.add(buffer.data(), static_cast<size_t>(rows) * size);
  }
  return checksum.value();
}
}  // namespace

struct Dataset::Impl {
  std::filesystem::path path;
  std::optional<hdf5::File> file;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> sources;
  std::string identity;
  std::vector<SplitData> splits;

  const SplitData& of(Split split) const { return splits[static_cast<size_t>(split)]; }
};

Dataset::Dataset(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->file = hdf5::File::open(path);
  const hdf5::Group root = impl_->file->root();
  check_format(root);
  impl_->tokenizer = load_tokenizer(root);
  impl_->sources = root.read_strings("sources");
  impl_->identity = root.text("identity");
  impl_->splits.push_back(load_split(root, Split::train));
  impl_->splits.push_back(load_split(root, Split::validation));
}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

const std::filesystem::path& Dataset::path() const { return impl_->path; }
const Tokenizer& Dataset::tokenizer() const { return *impl_->tokenizer; }
const std::vector<std::string>& Dataset::sources() const { return impl_->sources; }
const std::string& Dataset::identity() const { return impl_->identity; }

int64_t Dataset::documents(Split split) const { return static_cast<int64_t>(impl_->of(split).offsets.size()) - 1; }
int64_t Dataset::tokens(Split split) const { return impl_->of(split).offsets.back(); }
int64_t Dataset::text_bytes(Split split) const { return impl_->of(split).text_bytes; }

int64_t Dataset::length(Split split, int64_t document) const {
  const auto& offsets = impl_->of(split).offsets;
  const auto at = static_cast<size_t>(document);
  return offsets[at + 1] - offsets[at];
}

void Dataset::read(Split split, int64_t document, int64_t begin, std::span<int32_t> tokens) const {
  const SplitData& data = impl_->of(split);
  const auto count = static_cast<int64_t>(tokens.size());
  if (document < 0 || document >= documents(split) || begin < 0 || begin > length(split, document) - count) {
    throw Error(fmt::format("{}: {}: tokens {} to {} of document {} do not exist", impl_->path.string(),
                            dataset_format::split_name(split), begin, begin + count - 1, document));
  }
  data.tokens.read(data.offsets[static_cast<size_t>(document)] + begin, count, tokens.data());
  // Unsigned, so that a negative one is too large as well.
  const auto vocabulary = static_cast<uint32_t>(impl_->tokenizer->vocabulary());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = tokens[static_cast<size_t>(i)];
    if (static_cast<uint32_t>(token) >= vocabulary) {
      throw InputError(
          data.tokens.file(), data.tokens.name(),
          fmt::format("token {} of document {} is {}, the vocabulary has {}", begin + i, document, token, vocabulary));
    }
  }
}

void Dataset::verify() const {
  uint64_t checksums[4] = {};
  for (size_t i = 0; i < 2; ++i) {
    const SplitData& data = impl_->splits[i];
    checksums[2 * i] = checksum_tokens(data.tokens);
    if (checksum_text(checksums[2 * i]) != data.tokens.text("checksum")) {
      throw InputError(data.tokens.file(), data.tokens.name(), "the checksum does not match: the tokens are damaged");
    }
    Checksum offsets;
    offsets.add(data.offsets.data(), data.offsets.size() * sizeof(int64_t));
    checksums[2 * i + 1] = offsets.value();
  }
  if (dataset_format::identity(checksums) != impl_->identity) {
    throw InputError(impl_->path.string(), "attribute 'identity'", "does not match tokens and offsets: damaged");
  }
}

}  // namespace hat
