#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace hat {

/// Documents by length in tokens, in powers of two.
class LengthHistogram {
 public:
  /// Documents of at least `from` and below `to` tokens (to = 0: no upper end) and the tokens in them.
  struct Row {
    int64_t from = 0;
    int64_t to = 0;
    int64_t documents = 0;
    int64_t tokens = 0;
  };

  void add(int64_t length);
  int64_t documents() const;
  int64_t tokens() const;
  /// Below 512, 512 to 2047, 2048 to 8191, 8192 and more.
  std::vector<Row> coarse() const;
  /// Powers of two from the shortest to the longest.
  std::vector<Row> fine() const;
  /// Both as an aligned table with shares, for people.
  std::string table() const;

 private:
  Row sum(size_t first_power, size_t end_power) const;
  std::array<int64_t, 64> documents_{};  // index p: lengths of [2^p, 2^(p+1)) tokens
  std::array<int64_t, 64> tokens_{};
};

}  // namespace hat
