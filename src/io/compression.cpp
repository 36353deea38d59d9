#include "hat/io/compression.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "hat/core/clock.hpp"

namespace hat {

Compressibility measure_compression(std::span<const float> values) {
  constexpr int kLevel = 1;
  const std::span<const float> sample = values.first(std::min(values.size(), kMostCompressedValues));
  if (sample.empty()) return {};
  const double begin_s = now_s();
  const auto bytes = std::as_bytes(sample);
  std::vector<unsigned char> shuffled(bytes.size());
  for (size_t byte = 0; byte < sizeof(float); ++byte) {
    for (size_t i = 0; i < sample.size(); ++i) {
      shuffled[byte * sample.size() + i] = static_cast<unsigned char>(bytes[i * sizeof(float) + byte]);
    }
  }
  uLongf size = compressBound(static_cast<uLong>(shuffled.size()));
  std::vector<unsigned char> deflated(size);
  if (compress2(deflated.data(), &size, shuffled.data(), static_cast<uLong>(shuffled.size()), kLevel) != Z_OK)
    return {};
  return {.ratio = static_cast<double>(size) / static_cast<double>(bytes.size()),
          .bytes_per_s = static_cast<double>(bytes.size()) / std::max(now_s() - begin_s, 1e-9)};
}

bool compression_pays(const Compressibility& compressibility, double written_bytes_per_s) {
  if (written_bytes_per_s <= 0 || compressibility.bytes_per_s <= 0) return false;
  return 1 / compressibility.bytes_per_s + compressibility.ratio / written_bytes_per_s < 1 / written_bytes_per_s;
}

void CompressionChoice::begin_file(double now, bool compressed) {
  begin_ = now;
  busy_s_ = 0;
  compressed_ = compressed;
}

void CompressionChoice::wrote(int64_t bytes, double seconds) {
  busy_s_ += seconds;
  if (compressed_ || bytes == 0) return;
  plain_bytes_ += bytes;
  plain_s_ += seconds;
}

bool CompressionChoice::is_busy(double now) const {
  // What compressing has made easier must not at once look as if it were not needed.
  const double limit = compressed_ ? 0.25 : 0.5;
  return busy_s_ > limit * (now - begin_);
}

}  // namespace hat
