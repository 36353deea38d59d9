#include "hat/dataset/text_source.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "hat/core/error.hpp"
#include "hat/core/random.hpp"

namespace hat {

namespace {

class DatasetText : public TextSource {
 public:
  DatasetText(const Dataset& dataset, Split split) : dataset_(dataset), split_(split) {
    if (dataset.text_bytes(split) == 0) {
      throw InputError(dataset.path().string(), split == Split::train ? "/train" : "/validation", "has no text");
    }
  }
  std::string take(int64_t bytes) override {
    while (static_cast<int64_t>(ahead_.size()) < bytes) read_document();
    std::string text = ahead_.substr(0, static_cast<size_t>(bytes));
    ahead_.erase(0, static_cast<size_t>(bytes));
    return text;
  }

 private:
  void read_document() {
    std::vector<int32_t> tokens(static_cast<size_t>(dataset_.length(split_, next_)));
    dataset_.read(split_, next_, 0, tokens);
    ahead_ += dataset_.tokenizer().decode(tokens) + "\n";
    next_ = (next_ + 1) % dataset_.documents(split_);
  }

  const Dataset& dataset_;
  Split split_;
  int64_t next_ = 0;
  std::string ahead_;  // read and not yet taken
};

class MarkovText : public TextSource {
 public:
  MarkovText(uint64_t seed, uint64_t part) : seed_(seed), part_(part) {}
  std::string take(int64_t bytes) override {
    std::string text;
    text.reserve(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i) text += next();
    return text;
  }

 private:
  static constexpr uint64_t kLetters = 16;
  static constexpr uint64_t kChainStream = 0x434841494eULL;
  static constexpr uint64_t kTextStream = 0x54455854ULL << 24;
  static constexpr std::array<double, 4> kUpTo{0.6, 0.8, 0.95, 1.0};

  char next() {
    const double u = random_uniform(seed_, kTextStream + part_, position_++);
    const auto choice = static_cast<uint64_t>(std::upper_bound(kUpTo.begin(), kUpTo.end() - 1, u) - kUpTo.begin());
    const uint64_t letter = random_below(seed_, kChainStream, pair_ * kUpTo.size() + choice, kLetters);
    pair_ = (pair_ * kLetters + letter) % (kLetters * kLetters);
    return static_cast<char>('a' + letter);
  }

  uint64_t seed_;
  uint64_t part_;
  uint64_t position_ = 0;
  uint64_t pair_ = 0;
};

}  // namespace

std::unique_ptr<TextSource> make_dataset_text(const Dataset& dataset, Split split) {
  return std::make_unique<DatasetText>(dataset, split);
}

std::unique_ptr<TextSource> make_markov_text(uint64_t seed, uint64_t part) {
  return std::make_unique<MarkovText>(seed, part);
}

}  // namespace hat
