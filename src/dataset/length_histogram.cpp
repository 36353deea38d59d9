#include "hat/dataset/length_histogram.hpp"

#include <fmt/format.h>

#include <bit>
#include <numeric>

#include "hat/core/text.hpp"

namespace hat {

namespace {
std::string range_text(const LengthHistogram::Row& row) {
  if (row.from <= 1 && row.to > 0) return fmt::format("< {}", row.to);
  if (row.to == 0) return fmt::format(">= {}", row.from);
  return fmt::format("{} - {}", row.from, row.to - 1);
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}
}  // namespace

void LengthHistogram::add(int64_t length) {
  const auto power = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)) - 1);
  documents_.at(power) += 1;
  tokens_.at(power) += length;
}

int64_t LengthHistogram::documents() const { return std::accumulate(documents_.begin(), documents_.end(), int64_t{0}); }
int64_t LengthHistogram::tokens() const { return std::accumulate(tokens_.begin(), tokens_.end(), int64_t{0}); }

LengthHistogram::Row LengthHistogram::sum(size_t first_power, size_t end_power) const {
  Row row;
  row.from = int64_t{1} << first_power;
  row.to = end_power >= documents_.size() ? 0 : int64_t{1} << end_power;
  for (size_t p = first_power; p < end_power; ++p) {
    row.documents += documents_[p];
    row.tokens += tokens_[p];
  }
  return row;
}

std::vector<LengthHistogram::Row> LengthHistogram::coarse() const {
  return {sum(0, 9), sum(9, 11), sum(11, 13), sum(13, documents_.size())};
}

std::vector<LengthHistogram::Row> LengthHistogram::fine() const {
  size_t first = 0;
  size_t end = documents_.size();
  while (first < end && documents_[first] == 0) ++first;
  while (end > first && documents_[end - 1] == 0) --end;
  std::vector<Row> rows;
  for (size_t p = first; p < end; ++p) rows.push_back(sum(p, p + 1));
  return rows;
}

std::string LengthHistogram::table() const {
  std::string text =
      fmt::format("{:>18}  {:>12}  {:>7}  {:>14}  {:>7}\n", "tokens", "documents", "share", "tokens in all", "share");
  const auto add_rows = [&](const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      text += fmt::format("{:>18}  {:>12}  {:>6.1f}%  {:>14}  {:>6.1f}%\n", range_text(row), with_commas(row.documents),
                          percent(row.documents, documents()), with_commas(row.tokens), percent(row.tokens, tokens()));
    }
  };
  add_rows(coarse());
  text += "  in powers of two\n";
  add_rows(fine());
  return text;
}

}  // namespace hat
