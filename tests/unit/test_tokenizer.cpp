#include <map>

#include "hat/dataset/corpus.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/dataset/dataset_writer.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using test::expect_input_error;
using test::TemporaryFolder;
using test::write_bytes;

using Documents = std::vector<std::string>;

/// Keeps documents as they come, and the size of the largest piece.
class Collector final : public DocumentSink {
 public:
  void add_text(std::string_view text) override {
    current_ += text;
    largest_piece = std::max(largest_piece, text.size());
  }
  void end_document() override { documents.push_back(std::exchange(current_, {})); }
  Documents documents;
  size_t largest_piece = 0;

 private:
  std::string current_;
};

Documents read(const std::filesystem::path& path, const CorpusOptions& options) {
  Collector collector;
  for (const CorpusFile& file : find_corpus_files({path.string()}, options)) {
    read_corpus_file(file, options, collector, [](int64_t) {});
  }
  return collector.documents;
}

CorpusOptions with_separator(const std::string& separator) {
  CorpusOptions options;
  options.separator = separator;
  return options;
}

TEST(ByteTokenizer, EveryByteComesBack) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->vocabulary(), 257);
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  std::vector<int32_t> tokens{7};
  tokenizer->encode(text, tokens);
  ASSERT_EQ(tokens.size(), 257U);
  EXPECT_EQ(tokens[0], 7);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i) + 1], i);
  tokens.erase(tokens.begin());
  tokens.insert(tokens.begin() + 5, tokenizer->end_of_text());
  EXPECT_EQ(tokenizer->decode(tokens), text);
}

TEST(ByteTokenizer, UnknownNamesAreRefused) {
  EXPECT_EQ(make_tokenizer("byte", "x")->name(), "byte");
  expect_input_error([] { make_tokenizer("bpe", "data.h5"); }, {"data.h5", "tokenizer", "bpe"});
}

TEST(Corpus, WithoutSeparatorAFileIsADocument) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "one\n%\ntwo\n");
  EXPECT_EQ(read(folder / "a.txt", {}), (Documents{"one\n%\ntwo\n"}));
}

TEST(Corpus, SeparatorLinesDivideDocuments) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "one\n%\n% two\n%%\n x%\n%\n%\nthree\r\n%\r\nlast");
  EXPECT_EQ(read(folder / "a.txt", with_separator("%")),
            (Documents{"one\n", "% two\n%%\n x%\n", "", "three\r\n", "last"}));
  write_bytes(folder / "b.txt", "one\n<end>\ntwo\n<end>");  // nothing behind the last one
  EXPECT_EQ(read(folder / "b.txt", with_separator("<end>")), (Documents{"one\n", "two\n"}));
}

TEST(Corpus, SeparatorsAreFoundAtAnyPlaceOfTheBuffer) {
  const TemporaryFolder folder;
  Documents expected;
  std::string text;
  for (size_t i = 0; i < 3000; ++i) {
    expected.push_back(std::string(i % 401, static_cast<char>('a' + i % 26)) + "\n");
    text += expected.back() + "<sep>\n";
  }
  write_bytes(folder / "a.txt", text);
  EXPECT_EQ(read(folder / "a.txt", with_separator("<sep>")), expected);
}

TEST(Corpus, HugeLinesStream) {
  const TemporaryFolder folder;
  const std::string text(5'000'000, 'x');
  write_bytes(folder / "a.txt", text);
  for (const CorpusOptions& options : {CorpusOptions{}, with_separator("xxx")}) {
    Collector collector;
    read_corpus_file(find_corpus_files({(folder / "a.txt").string()}, options).front(), options, collector,
                     [](int64_t) {});
    ASSERT_EQ(collector.documents.size(), 1U);
    EXPECT_EQ(collector.documents[0], text);
    EXPECT_LT(collector.largest_piece, 1U << 20);
  }
}

TEST(Corpus, JsonLines) {
  const TemporaryFolder folder;
  const std::string lines = "{\"text\": \"one\\n\\u00e4\"}\n\n{\"id\": 3, \"text\": \"\"}\n{\"text\": \"%\"}";
  write_bytes(folder / "a.jsonl", lines);
  test::write_gzip(folder / "b.jsonl.gz", lines);
  for (const char* name : {"a.jsonl", "b.jsonl.gz"}) {
    EXPECT_EQ(read(folder / name, with_separator("%")), (Documents{"one\nä", "", "%"}));
  }
  CorpusOptions key;
  key.text_key = "body";
  write_bytes(folder / "c.ndjson", "{\"body\": \"x\"}\n");
  EXPECT_EQ(read(folder / "c.ndjson", key), (Documents{"x"}));
}

TEST(Corpus, BadJsonNamesTheLine) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& line, const std::vector<std::string>& parts) {
    write_bytes(folder / "a.jsonl", "{\"text\": \"fine\"}\n" + line + "\n");
    expect_input_error([&] { read(folder / "a.jsonl", {}); }, parts);
  };
  refuse("{\"text\": ", {"a.jsonl:2", "not valid JSON"});
  refuse("[1]", {"a.jsonl:2", "not a JSON object"});
  refuse("{\"body\": \"x\"}", {"a.jsonl:2", "text", "no such key"});
  refuse("{\"text\": 5}", {"a.jsonl:2", "text", "is a number, not a string"});
  refuse("{\"text\": \"\xff\"}", {"a.jsonl:2", "not valid JSON"});
}

TEST(Corpus, FoldersAreSearchedInOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"b.txt", "a.txt", "sub/deep/c.txt", "sub/skip.log", ".hidden/d.txt", ".e.txt"}) {
    write_bytes(folder / name, std::string(name) + "\n");
  }
  EXPECT_EQ(read(folder.path(), {}), (Documents{"a.txt\n", "b.txt\n", "sub/deep/c.txt\n", "sub/skip.log\n"}));
  CorpusOptions options;
  options.include = {"*.txt"};
  options.exclude = {"sub/deep/*"};
  EXPECT_EQ(read(folder.path(), options), (Documents{"a.txt\n", "b.txt\n"}));
  options.include = {"*.md"};
  expect_input_error([&] { read(folder.path(), options); }, {"no file"});
  expect_input_error([&] { read(folder / "none", {}); }, {"none", "no such file"});
  expect_input_error(
      [&] {
        find_corpus_files({folder.path().string(), (folder / "a.txt").string()}, {});
      },
      {"a.txt", "given twice"});
}

/// Splits documents through a real dataset and gives them back per split.
std::map<Split, Documents> split_documents(const Documents& documents, double fraction, uint64_t seed,
                                           int64_t* empty = nullptr) {
  const TemporaryFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  {
    DatasetWriter writer(folder / "d.h5", *tokenizer, {"test"});
    CorpusSplitter splitter(writer, fraction, seed);
    for (const std::string& document : documents) {
      for (const char c : document) splitter.add_text({&c, 1});  // the smallest pieces
      splitter.end_document();
    }
    splitter.check_splits("test");
    if (empty != nullptr) *empty = splitter.empty_documents();
    writer.finish();
  }
  const Dataset dataset(folder / "d.h5");
  std::map<Split, Documents> splits;
  for (const Split split : {Split::train, Split::validation}) {
    for (int64_t i = 0; i < dataset.documents(split); ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(split, i)));
      dataset.read(split, i, 0, tokens);
      EXPECT_EQ(tokens.back(), tokenizer->end_of_text());
      splits[split].push_back(tokenizer->decode(tokens));
    }
  }
  return splits;
}

TEST(CorpusSplitterTest, EveryDocumentGoesToOneSplit) {
  Documents documents;
  for (int i = 0; i < 2000; ++i) documents.push_back("document " + std::to_string(i));
  const auto splits = split_documents(documents, 0.1, 5);
  EXPECT_NEAR(static_cast<double>(splits.at(Split::validation).size()), 200.0, 50.0);
  Documents all = splits.at(Split::train);
  all.insert(all.end(), splits.at(Split::validation).begin(), splits.at(Split::validation).end());
  std::sort(all.begin(), all.end());
  std::sort(documents.begin(), documents.end());
  EXPECT_EQ(all, documents);
  EXPECT_EQ(split_documents(documents, 0.1, 5), split_documents(documents, 0.1, 5));
  EXPECT_NE(split_documents(documents, 0.1, 5), split_documents(documents, 0.1, 6));
}

TEST(CorpusSplitterTest, OneNewlineGoesAndEmptyDocumentsAreCounted) {
  int64_t empty = 0;
  const auto splits = split_documents({"a\n", "", "\n", "b\n\n", "\n\nc", "d", "\n\n"}, 0.5, 3, &empty);
  EXPECT_EQ(empty, 2);
  Documents all = splits.at(Split::train);
  all.insert(all.end(), splits.at(Split::validation).begin(), splits.at(Split::validation).end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (Documents{"\n", "\n\nc", "a", "b\n", "d"}));
}

TEST(CorpusSplitterTest, BothSplitsNeedADocument) {
  expect_input_error([] { split_documents({"one"}, 0.5, 1); }, {"1 document found", "validation"});
  expect_input_error([] { split_documents({}, 0.5, 1); }, {"there is no text", "0 documents"});
  expect_input_error([] { split_documents({"", "\n"}, 0.5, 1); }, {"there is no text", "2 empty"});
  expect_input_error([] { split_documents({"a", "b"}, 1e-9, 1); }, {"validation", "2 documents"});
  expect_input_error([] { split_documents({"a", "b"}, 1.0, 1); }, {"training", "2 documents"});
}

TEST(LengthHistogramTest, CountsByPowersOfTwo) {
  LengthHistogram histogram;
  for (const int64_t length : {1, 2, 3, 511, 512, 2047, 2048, 8191, 8192, 1 << 20}) histogram.add(length);
  EXPECT_EQ(histogram.documents(), 10);
  EXPECT_EQ(histogram.tokens(), 1 + 2 + 3 + 511 + 512 + 2047 + 2048 + 8191 + 8192 + (1 << 20));
  const auto coarse = histogram.coarse();
  ASSERT_EQ(coarse.size(), 4U);
  EXPECT_EQ(coarse[0].documents, 4);
  EXPECT_EQ(coarse[1].documents, 2);
  EXPECT_EQ(coarse[2].documents, 2);
  EXPECT_EQ(coarse[3].documents, 2);
  EXPECT_EQ(coarse[1].tokens, 512 + 2047);
  const auto fine = histogram.fine();
  EXPECT_EQ(fine.front().from, 1);
  EXPECT_EQ(fine[1].documents, 2);  // 2 and 3
  EXPECT_EQ(fine.back().from, 1 << 20);
}

}  // namespace
}  // namespace hat
