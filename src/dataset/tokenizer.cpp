#include "hat/core/error.hpp"
#include "hat/dataset/dataset.hpp"

namespace hat {

namespace {
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int32_t vocabulary() const override { return 257; }
  int32_t end_of_text() const override { return 256; }

  void encode(std::string_view text, std::vector<int32_t>& tokens) const override {
    const size_t begin = tokens.size();
    tokens.resize(begin + text.size());
    for (size_t i = 0; i < text.size(); ++i) tokens[begin + i] = static_cast<unsigned char>(text[i]);
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const int32_t token : tokens) {
      if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
    }
    return text;
  }
};
}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& where) {
  if (name == "byte") return make_byte_tokenizer();
  throw InputError(where, "tokenizer", fmt::format("'{}' is not known to this build (known: byte)", name));
}

}  // namespace hat
