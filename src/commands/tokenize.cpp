#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "hat/commands/commands.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/option_set.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/corpus.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/dataset/dataset_writer.hpp"
#include "hat/io/progress.hpp"

namespace hat {

namespace {

namespace fs = std::filesystem;

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string output = "dataset.h5";
  std::string separator;
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  double validation = 0.05;
  uint64_t seed = 1;
  std::string tokenizer = "byte";
  std::string text_key = "text";
  bool force = false;
};

void add_keys(OptionSet& keys, TokenizeOptions& options) {
  keys.add("output", options.output, "The dataset to write (HDF5)");
  keys.add("separator", options.separator,
           "A line equal to this separates the documents of a text file, e.g. '%'; empty: one file is one document");
  keys.add("include", options.include, "Of the files in folders, take only those that match one of these globs");
  keys.add("exclude", options.exclude, "Of the files in folders, leave out those that match one of these globs");
  keys.add("validation", options.validation, "Share of the documents kept for validation, chosen at random")
      ->check(real_in(0.0, 1.0, Ends::neither));
  keys.add("seed", options.seed, "Seed of that choice")->check(integer_in(0));
  keys.add("tokenizer", options.tokenizer, "byte: the 256 byte values and an end-of-text token");
  keys.add("text-key", options.text_key, "Key that holds the text in a line of JSONL");
  keys.add_flag("force", options.force, "Replace the output if it exists");
}

/// Refuses an output that cannot or must not be written, before any input is read.
void check_output(const OptionSet& keys, const TokenizeOptions& options) {
  const auto refuse = [&](const std::string& reason) {
    throw keys.error("output", fmt::format("{}: {}", options.output, reason));
  };
  if (options.output.empty()) refuse("a file name is needed");
  const fs::path output = options.output;
  if (fs::is_directory(output)) refuse("is a folder");
  if (fs::exists(output) && !fs::is_regular_file(output)) refuse("is not a regular file");  // root could replace it
  if (fs::exists(output) && !options.force) refuse("exists already; --force replaces it");
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) refuse(fmt::format("there is no folder {}", folder.string()));
  if (::access(folder.c_str(), W_OK) != 0) {
    refuse(fmt::format("cannot write in {}: {}", folder.string(), std::strerror(errno)));
  }
}

void check_not_an_input(const OptionSet& keys, const TokenizeOptions& options, const std::vector<CorpusFile>& files) {
  const fs::path output = resolved(options.output);
  for (const CorpusFile& file : files) {
    if (resolved(file.path) == output) {
      throw keys.error("output", fmt::format("{} is one of the inputs", options.output));
    }
  }
}

void print_summary(const TokenizeOptions& options, const DatasetWriter& writer, const CorpusSplitter& splitter,
                   const std::string& identity, size_t files) {
  fmt::print("{} from {}, tokenizer '{}'\n", counted(splitter.documents(), "document"),
             counted(static_cast<int64_t>(files), "file"), options.tokenizer);
  for (const Split split : {Split::train, Split::validation}) {
    fmt::print("  {:<12} {:>12} documents  {:>14} tokens  {:>14} bytes of text\n",
               split == Split::train ? "train" : "validation", with_commas(writer.documents(split)),
               with_commas(writer.tokens(split)), with_commas(writer.text_bytes(split)));
  }
  if (splitter.empty_documents() > 0) {
    fmt::print("  skipped: {}\n", counted(splitter.empty_documents(), "empty document"));
  }
  fmt::print("\nLengths (tokens include the end-of-text of each document)\n{}\n", splitter.histogram().table());
  fmt::print("The dataset is in {0} (identity {1}); look into it with: {2} inspect {0}\n", options.output, identity,
             program_invocation_name);
}

ExitCode tokenize(OptionSet& keys, const TokenizeOptions& options) {
  keys.load(std::nullopt);
  const auto tokenizer = make_tokenizer(options.tokenizer, keys.place("tokenizer"));
  check_output(keys, options);
  if (options.separator.find('\n') != std::string::npos) {
    throw keys.error("separator", "is one line, without its end");
  }
  CorpusOptions corpus{std::nullopt, options.include, options.exclude, options.text_key};
  if (!options.separator.empty()) corpus.separator = options.separator;
  const auto files = find_corpus_files(options.inputs, corpus);
  check_not_an_input(keys, options, files);

  int64_t total_bytes = 0;
  for (const CorpusFile& file : files) total_bytes += file.size_bytes;
  DatasetWriter writer(options.output, *tokenizer, options.inputs);
  CorpusSplitter splitter(writer, options.validation, options.seed);
  {
    Progress progress("tokenize", total_bytes);
    int64_t done_bytes = 0;
    for (const CorpusFile& file : files) {
      read_corpus_file(file, corpus, splitter, [&](int64_t position) { progress.update(done_bytes + position); });
      done_bytes += file.size_bytes;
    }
  }
  splitter.check_splits(options.inputs.size() == 1 ? options.inputs.front() : "inputs");
  const std::string identity = writer.finish();
  print_summary(options, writer, splitter, identity, files.size());
  return ExitCode::success;
}

}  // namespace

CommandBody add_tokenize(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into a dataset");
  command->footer(
      "Files are text or JSONL (.jsonl, .ndjson: one object per line), each plain or gzip. Folders are searched.\n"
      "One newline at the end of a document is removed; documents that are empty then are skipped.\n"
      "Example: hat tokenize corpus --include '*.txt' --separator % --output dataset.h5");
  auto options = std::make_shared<TokenizeOptions>();
  command->add_option("inputs", options->inputs, "Text files, JSONL files and folders")->required();
  auto keys = std::make_shared<OptionSet>(*command, "tokenize");
  add_keys(*keys, *options);
  return [keys, options] { return tokenize(*keys, *options); };
}

}  // namespace hat
