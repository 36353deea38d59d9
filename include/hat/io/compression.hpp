#pragma once
#include <cstddef>
#include <span>

namespace hat {

/// What compressing as hdf5::Storage::deflate does would do to such values on this machine.
struct Compressibility {
  double ratio = 1;        ///< bytes afterwards over bytes before
  double bytes_per_s = 0;  ///< of uncompressed values
};

inline constexpr size_t kMostCompressedValues = 65'536;  ///< that are looked at: some milliseconds

/// Compresses a part of the values, and throws the result away.
Compressibility measure_compression(std::span<const float> values);

/// Whether compressing and writing the rest takes less time than writing everything. `written_bytes_per_s`: by the
/// disk, 0: not known.
bool compression_pays(const Compressibility& compressibility, double written_bytes_per_s);

}  // namespace hat
