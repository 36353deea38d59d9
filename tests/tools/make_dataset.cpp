// make_dataset <file> <tokens>[,<tokens>...] [<tokens>...]
//
// A dataset with training documents of exactly these lengths (end-of-text included) and validation documents of the
// lengths of the third argument (default: one of 12). Unlike `hat tokenize` it can make what a sound program never
// writes, with right checksums, so that nothing but the fault itself can be found: a document of 0 tokens, or no
// documents at all (an argument of "none").
#include <string>
#include <vector>

#include "hat/core/error.hpp"
#include "hat/dataset/dataset_format.hpp"

namespace {

using hat::Checksum;
using hat::hdf5::Element;

constexpr int32_t kEndOfText = 256;

std::vector<int64_t> parse_lengths(const std::string& text) {
  std::vector<int64_t> lengths;
  if (text == "none") return lengths;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    lengths.push_back(std::stoll(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lengths;
}

struct Split {
  std::vector<uint16_t> tokens;
  std::vector<int64_t> offsets{0};
};

/// Words of a fixed pattern, another one in each document.
Split make_split(const std::vector<int64_t>& lengths) {
  Split split;
  for (size_t document = 0; document < lengths.size(); ++document) {
    for (int64_t i = 0; i + 1 < lengths[document]; ++i) {
      const auto letter = (static_cast<uint64_t>(i) * (document + 3) + document) % 26;
      split.tokens.push_back(static_cast<uint16_t>(i % 7 == 6 ? ' ' : 'a' + letter));
    }
    if (lengths[document] > 0) split.tokens.push_back(kEndOfText);
    split.offsets.push_back(static_cast<int64_t>(split.tokens.size()));
  }
  return split;
}

uint64_t write_array(hat::hdf5::Group& group, const std::string& name, Element element, int64_t rows,
                     const void* values) {
  auto array = group.create_array(name, element, {rows, 1, true});
  if (rows > 0) array.write_raw(0, rows, element, values);
  Checksum checksum;
  checksum.add(values, static_cast<size_t>(rows) * hat::hdf5::element_size(element));
  array.set_text("checksum", hat::checksum_text(checksum.value()));
  return checksum.value();
}

void write(const std::string& path, const Split (&splits)[2]) {
  auto file = hat::hdf5::File::create(path);
  {
    auto root = file.root();
    root.set_text("format", hat::dataset_format::kFormat);
    root.set_number("format_version", hat::dataset_format::kVersion);
    root.set_text("written_by", "make_dataset");
    root.write_strings("sources", {"make_dataset"});
    auto tokenizer = root.create_group("tokenizer");
    tokenizer.set_text("name", "byte");
    tokenizer.set_number<int64_t>("vocabulary", kEndOfText + 1);
    tokenizer.set_number<int64_t>("end_of_text", kEndOfText);
    uint64_t checksums[4];
    for (size_t s = 0; s < 2; ++s) {
      const Split& split = splits[s];
      auto group = root.create_group(hat::dataset_format::kSplitNames[s]);
      const auto tokens = static_cast<int64_t>(split.tokens.size());
      const auto offsets = static_cast<int64_t>(split.offsets.size());
      checksums[2 * s] = write_array(group, "tokens", Element::uint16, tokens, split.tokens.data());
      checksums[2 * s + 1] = write_array(group, "offsets", Element::int64, offsets, split.offsets.data());
      group.set_number<int64_t>("text_bytes", tokens - (offsets - 1));
    }
    root.set_text("identity", hat::dataset_format::identity(checksums));
  }
  file.close();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3 && argc != 4) throw hat::InputError("command line", "", "make_dataset FILE LENGTHS [LENGTHS]");
    write(argv[1], {make_split(parse_lengths(argv[2])), make_split(parse_lengths(argc == 4 ? argv[3] : "12"))});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_dataset: {}\n", error.what());
    return 2;
  }
}
