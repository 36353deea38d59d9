#pragma once
#include <cstddef>
#include <cstdint>
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

/// Whether the next file shall be compressed that a thread beside training writes, by what the file before it took.
/// Compressing takes processor time that training may lack, so it is for a thread that hardly keeps up with what it is
/// given. Times in seconds.
class CompressionChoice {
 public:
  /// A file begins `now`, with compression or without.
  void begin_file(double now, bool compressed);
  /// Writing kept the thread busy for so long; `bytes`: of values, as they are in memory.
  void wrote(int64_t bytes, double seconds);
  /// For the file that begins `now`. `measure()` gives the Compressibility of such values; called only where it
  /// decides.
  template <class Measure>
  bool choose(double now, Measure measure) const {
    return is_busy(now) && plain_s_ > 0 && compression_pays(measure(), static_cast<double>(plain_bytes_) / plain_s_);
  }

 private:
  bool is_busy(double now) const;

  double begin_ = 0;  // of the present file
  double busy_s_ = 0;
  bool compressed_ = false;
  int64_t plain_bytes_ = 0;  // of all files without compression
  double plain_s_ = 0;
};

}  // namespace hat
