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

/// Whether to compress what a thread beside training writes. `written_bytes_per_s`: by the disk, 0: not known.
/// `busy_share`: of its time, that the thread spends writing. Compressing takes processor time that training may lack, so
/// it pays only where the thread hardly keeps up with what it is given, and would take less time that way.
bool compression_pays(const Compressibility& compressibility, double written_bytes_per_s, double busy_share);

}  // namespace hat
