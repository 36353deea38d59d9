#include <fmt/format.h>

#include "commands/inspect.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/dataset/length_histogram.hpp"

namespace hat {

namespace {
nlohmann::json rows_json(const std::vector<LengthHistogram::Row>& rows) {
  auto list = nlohmann::json::array();
  for (const auto& row : rows) {
    list.push_back({{"from", row.from}, {"to", row.to}, {"documents", row.documents}, {"tokens", row.tokens}});
    if (row.to == 0) list.back()["to"] = nullptr;
  }
  return list;
}
}  // namespace

Inspection inspect_dataset(const std::filesystem::path& path, ReadContents contents) {
  const Dataset dataset(path);
  Inspection result;
  result.text = fmt::format("dataset {}\n  tokenizer   {} (vocabulary {}, end-of-text {})\n  identity    {}\n",
                            path.string(), dataset.tokenizer().name(), dataset.tokenizer().vocabulary(),
                            dataset.tokenizer().end_of_text(), dataset.identity());
  result.data = {
      {"kind", "dataset"},
      {"path", path.string()},
      {"identity", dataset.identity()},
      {"tokenizer", {{"name", dataset.tokenizer().name()}, {"vocabulary", dataset.tokenizer().vocabulary()}}},
      {"sources", dataset.sources()}};
  LengthHistogram histogram;
  for (const Split split : {Split::train, Split::validation}) {
    const char* name = split == Split::train ? "train" : "validation";
    for (int64_t i = 0; i < dataset.documents(split); ++i) histogram.add(dataset.length(split, i));
    result.text +=
        fmt::format("  {:<11} {} documents, {} tokens, {} bytes of text\n", name, with_commas(dataset.documents(split)),
                    with_commas(dataset.tokens(split)), with_commas(dataset.text_bytes(split)));
    result.data["splits"][name] = {{"documents", dataset.documents(split)},
                                   {"tokens", dataset.tokens(split)},
                                   {"text_bytes", dataset.text_bytes(split)}};
  }
  for (const std::string& source : dataset.sources()) result.text += fmt::format("  source      {}\n", source);
  result.text += "\nLengths (tokens include the end-of-text of each document)\n" + histogram.table();
  result.data["histogram"] = {{"coarse", rows_json(histogram.coarse())}, {"fine", rows_json(histogram.fine())}};
  if (contents == ReadContents::yes) {
    try {
      dataset.verify();
      result.text += "\nAll checksums match.\n";
    } catch (const InputError& error) {
      result.problems.emplace_back(error.what());
    }
  }
  return result;
}

}  // namespace hat
