#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hat {

enum class Split { train, validation };

/// A tokenizer turns text into tokens and back. The dataset stores its name and its state, so that other tokenizers
/// need no new file format.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  ///< "byte"
  virtual int32_t vocabulary() const = 0;
  virtual int32_t end_of_text() const = 0;
  virtual void encode(std::string_view text, std::vector<int32_t>& tokens) const = 0;  ///< appends, no end-of-text
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;               ///< end-of-text becomes nothing
};

/// 256 byte values and end-of-text (256).
std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// By stored identity; throws InputError when this build does not know it.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& where);

/// dataset.h5, read only. Documents keep the order of the source. A document's tokens end with end-of-text, so its
/// length is at least 1 and every document has length() target tokens: target i is token i, input i is token i - 1, and
/// input 0 is end-of-text.
/// Reading is safe from several threads. Throws InputError on anything that is not a sound dataset.
class Dataset {
 public:
  explicit Dataset(const std::filesystem::path& path);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const std::filesystem::path& path() const;
  const Tokenizer& tokenizer() const;
  int64_t documents(Split split) const;
  int64_t tokens(Split split) const;                    ///< target tokens, end-of-text included
  int64_t text_bytes(Split split) const;                ///< bytes of text, the denominator of bits per byte
  int64_t length(Split split, int64_t document) const;  ///< tokens, end-of-text included
  /// Tokens [begin, begin + tokens.size()) of a document.
  void read(Split split, int64_t document, int64_t begin, std::span<int32_t> tokens) const;
  /// Where the text came from, as given to `hat tokenize`.
  const std::vector<std::string>& sources() const;
  /// Identity of the content (checksum of tokens and offsets made when it was written): equal iff trained on the same.
  const std::string& identity() const;
  /// Reads everything and compares with the stored checksums; throws InputError naming what is damaged.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
