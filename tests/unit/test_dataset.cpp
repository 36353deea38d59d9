#include <algorithm>
#include <atomic>
#include <thread>

#include "hat/dataset/dataset.hpp"
#include "hat/dataset/dataset_format.hpp"
#include "hat/dataset/dataset_writer.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using test::expect_input_error;
using test::TemporaryFolder;

std::string document_text(int64_t i) {
  return std::string(static_cast<size_t>(i % 97), static_cast<char>('a' + i % 26)) + "!";
}

/// Documents 0, 1, ... of `document_text`, every fifth in validation.
void write_dataset(const std::filesystem::path& path, int64_t documents) {
  const auto tokenizer = make_byte_tokenizer();
  DatasetWriter writer(path, *tokenizer, {"first source", "second source"});
  for (int64_t i = 0; i < documents; ++i) {
    const Split split = i % 5 == 4 ? Split::validation : Split::train;
    writer.add_text(split, document_text(i));
    EXPECT_EQ(writer.end_document(split), static_cast<int64_t>(document_text(i).size()) + 1);
  }
  writer.finish();
}

std::string read_text(const Dataset& dataset, Split split, int64_t document) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(split, document)));
  dataset.read(split, document, 0, tokens);
  EXPECT_EQ(tokens.back(), 256);
  return dataset.tokenizer().decode(tokens);
}

TEST(DatasetTest, DocumentsComeBack) {
  const TemporaryFolder folder;
  constexpr int64_t kDocuments = 12000;  // more than one chunk of tokens
  write_dataset(folder / "d.h5", kDocuments);
  const Dataset dataset(folder / "d.h5");
  EXPECT_EQ(dataset.documents(Split::train), kDocuments * 4 / 5);
  EXPECT_EQ(dataset.documents(Split::validation), kDocuments / 5);
  EXPECT_EQ(dataset.sources(), (std::vector<std::string>{"first source", "second source"}));
  int64_t bytes = 0;
  for (int64_t i = 0; i < kDocuments; ++i) {
    const Split split = i % 5 == 4 ? Split::validation : Split::train;
    const int64_t index = split == Split::validation ? i / 5 : i / 5 * 4 + i % 5;
    ASSERT_EQ(read_text(dataset, split, index), document_text(i));
    bytes += static_cast<int64_t>(document_text(i).size());
  }
  EXPECT_EQ(dataset.text_bytes(Split::train) + dataset.text_bytes(Split::validation), bytes);
  EXPECT_EQ(dataset.tokens(Split::train) + dataset.tokens(Split::validation), bytes + kDocuments);
  dataset.verify();
}

TEST(DatasetTest, PartsOfDocuments) {
  const TemporaryFolder folder;
  write_dataset(folder / "d.h5", 200);
  const Dataset dataset(folder / "d.h5");
  std::vector<int32_t> tokens(3);
  dataset.read(Split::train, 3, 1, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'d', 'd', '!'}));
  EXPECT_THROW(dataset.read(Split::train, 3, 3, tokens), Error);
  EXPECT_THROW(dataset.read(Split::train, 160, 0, tokens), Error);
  EXPECT_THROW(dataset.read(Split::train, 3, -1, tokens), Error);
  dataset.read(Split::train, 3, 0, std::span<int32_t>{});
}

TEST(DatasetTest, SeveralThreadsRead) {
  const TemporaryFolder folder;
  write_dataset(folder / "d.h5", 500);
  const Dataset dataset(folder / "d.h5");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 400; ++i) {
        std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(Split::train, i)));
        dataset.read(Split::train, i, 0, tokens);
        if (dataset.tokenizer().decode(tokens) != document_text(i / 4 * 5 + i % 4)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(DatasetTest, IdentityIsThatOfTheContent) {
  const TemporaryFolder folder;
  write_dataset(folder / "a.h5", 100);
  write_dataset(folder / "b.h5", 100);
  write_dataset(folder / "c.h5", 101);
  EXPECT_EQ(Dataset(folder / "a.h5").identity(), Dataset(folder / "b.h5").identity());
  EXPECT_NE(Dataset(folder / "a.h5").identity(), Dataset(folder / "c.h5").identity());
}

TEST(DatasetTest, AnAbandonedWriterLeavesNothing) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  {
    DatasetWriter writer(folder / "d.h5", *tokenizer, {});
    writer.add_text(Split::train, "text");
    EXPECT_FALSE(std::filesystem::exists(folder / "d.h5"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

class NumberTokenizer final : public Tokenizer {
 public:
  explicit NumberTokenizer(int32_t vocabulary) : vocabulary_(vocabulary) {}
  std::string name() const override { return "number"; }
  int32_t vocabulary() const override { return vocabulary_; }
  int32_t end_of_text() const override { return vocabulary_ - 1; }
  void encode(std::string_view text, std::vector<int32_t>& tokens) const override {
    tokens.push_back(std::stoi(std::string(text)));
  }
  std::string decode(std::span<const int32_t>) const override { return ""; }

 private:
  int32_t vocabulary_;
};

TEST(DatasetTest, TheFormatCarriesOtherVocabularies) {
  const TemporaryFolder folder;
  const std::vector<std::pair<int32_t, hdf5::Element>> cases{{256, hdf5::Element::uint8},
                                                             {257, hdf5::Element::uint16},
                                                             {65536, hdf5::Element::uint16},
                                                             {65537, hdf5::Element::int32}};
  for (const auto& [vocabulary, element] : cases) {
    const NumberTokenizer tokenizer(vocabulary);
    {
      DatasetWriter writer(folder / "d.h5", tokenizer, {});
      for (const Split split : {Split::train, Split::validation}) {
        writer.add_text(split, std::to_string(vocabulary - 2));
        writer.end_document(split);
      }
      writer.finish();
    }
    const auto file = hdf5::File::open(folder / "d.h5");
    const auto tokens = file.root().open_array("train/tokens");
    EXPECT_EQ(tokens.element(), element);
    std::vector<int32_t> values(2);
    tokens.read(0, 2, values.data());
    EXPECT_EQ(values, (std::vector<int32_t>{vocabulary - 2, vocabulary - 1}));
    expect_input_error([&] { Dataset{folder / "d.h5"}; }, {"d.h5", "tokenizer", "'number' is not known"});
  }
}

/// A dataset made by hand, to be wrong in one way.
struct RawDataset {
  std::string format = dataset_format::kFormat;
  int64_t version = dataset_format::kVersion;
  int64_t vocabulary = 257;
  std::vector<int64_t> train_offsets{0, 2, 4, 6};
  std::vector<int64_t> validation_offsets{0, 2};
  std::vector<int32_t> tokens{'a', 256, 'b', 256, 'c', 256};

  void write(const std::filesystem::path& path) const {
    auto file = hdf5::File::create(path);
    {
      auto root = file.root();
      root.set_text("format", format);
      root.set_number("format_version", version);
      root.set_text("identity", "0");
      root.write_strings("sources", {"hand"});
      auto tokenizer = root.create_group("tokenizer");
      tokenizer.set_text("name", "byte");
      tokenizer.set_number("vocabulary", vocabulary);
      tokenizer.set_number<int64_t>("end_of_text", 256);
      write_split(root.create_group("train"), train_offsets, tokens);
      write_split(root.create_group("validation"), validation_offsets, {'v', 256});
    }
    file.close();
  }

 private:
  static void write_split(hdf5::Group group, const std::vector<int64_t>& offsets, const std::vector<int32_t>& tokens) {
    group.write_vector("offsets", offsets);
    group.write_vector("tokens", tokens);
    group.set_number<int64_t>("text_bytes", 1);
  }
};

void expect_refused(const RawDataset& raw, const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  raw.write(folder / "raw.h5");
  expect_input_error([&] { Dataset{folder / "raw.h5"}; }, parts);
}

TEST(DatasetTest, WrongFilesAreRefusedWithOneLine) {
  const TemporaryFolder folder;
  RawDataset().write(folder / "good.h5");
  EXPECT_EQ(read_text(Dataset(folder / "good.h5"), Split::train, 1), "b");
  expect_refused({.format = "hat-checkpoint"}, {"raw.h5", "not a dataset"});
  expect_refused({.version = 2}, {"format_version", "is 2", "reads 1"});
  expect_refused({.vocabulary = 300}, {"/tokenizer", "vocabulary"});
  {
    auto file = hdf5::File::create(folder / "foreign.h5");
    file.close();
  }
  expect_input_error([&] { Dataset{folder / "foreign.h5"}; }, {"foreign.h5", "not a dataset"});
}

TEST(DatasetTest, DocumentsWithoutTokensAreNamed) {
  expect_refused({.train_offsets = {0, 0, 4, 6}}, {"/train/offsets", "document 0 (the first", "has no tokens"});
  expect_refused({.train_offsets = {0, 3, 3, 6}}, {"/train/offsets", "document 1 of 3", "has no tokens"});
  expect_refused({.train_offsets = {0, 2, 6, 6}}, {"/train/offsets", "document 2 (the last)", "has no tokens"});
  expect_refused({.train_offsets = {0, 0, 0, 0}, .tokens = {}}, {"/train/offsets", "all 3 documents"});
  expect_refused({.validation_offsets = {0}}, {"/validation/offsets", "no documents"});
  expect_refused({.validation_offsets = {}}, {"/validation/offsets", "no documents"});
}

TEST(DatasetTest, OffsetsMustFit) {
  expect_refused({.train_offsets = {1, 2, 4, 6}}, {"/train/offsets", "the first is 1"});
  expect_refused({.train_offsets = {0, 4, 2, 6}}, {"/train/offsets", "document 1", "ends before it begins"});
  expect_refused({.train_offsets = {0, 2, 4, 7}}, {"/train/offsets", "end at token 7", "6 tokens"});
  expect_refused({.train_offsets = {0, 2, 4, 5}}, {"/train/offsets", "end at token 5", "6 tokens"});
}

TEST(DatasetTest, TokensOutsideTheVocabularyAreFoundWhenRead) {
  const TemporaryFolder folder;
  for (const int32_t token : {257, -1}) {
    RawDataset{.tokens = {'a', 256, 'b', token, 'c', 256}}.write(folder / "raw.h5");
    const Dataset dataset(folder / "raw.h5");
    EXPECT_EQ(read_text(dataset, Split::train, 0), "a");
    expect_input_error([&] { read_text(dataset, Split::train, 1); },
                       {"/train/tokens", "token 1 of document 1 is " + std::to_string(token), "vocabulary has 257"});
  }
}

TEST(DatasetTest, DamageIsFound) {
  const TemporaryFolder folder;
  write_dataset(folder / "d.h5", 300);
  std::string bytes = test::read_bytes(folder / "d.h5");
  const size_t at = bytes.find(std::string("q\0q\0q\0q\0", 8));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'r';
  test::write_bytes(folder / "flipped.h5", bytes);
  const Dataset flipped(folder / "flipped.h5");
  expect_input_error([&] { flipped.verify(); }, {"flipped.h5", "/tokens", "checksum"});
  test::write_bytes(folder / "short.h5", bytes.substr(0, bytes.size() * 3 / 4));
  expect_input_error([&] { Dataset{folder / "short.h5"}; }, {"short.h5", "truncated"});
}

}  // namespace
}  // namespace hat
