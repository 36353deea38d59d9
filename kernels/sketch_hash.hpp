#pragma once
#include <cstdint>

#include "hat/core/random.hpp"
#include "hat/kernels/operations.hpp"

namespace hat {

// Where count_sketch adds an element, and with which sign, on every kind of device. Elements of one run of
// kSketchBuckets have a bucket each. Every run is rotated by a random number, or a column of a matrix would fall into
// few buckets. The seed is the same on all ranks, for ever: sketches are added and subtracted.

inline constexpr uint64_t kSketchSeed = 0x5ce7c4;
inline constexpr int64_t kSketchWord = 32;  ///< elements whose signs are one random number

/// Bit i: element 32 word + i is added with a minus.
constexpr uint32_t sketch_signs(int64_t word) {
  constexpr uint64_t kSigns = 2;
  return static_cast<uint32_t>(random_bits(kSketchSeed, kSigns, static_cast<uint64_t>(word)) >> 32);
}

/// Element i of the run is added to bucket (i + rotation) mod kSketchBuckets.
constexpr int64_t sketch_rotation(int64_t run) {
  constexpr uint64_t kRotations = 1;
  static_assert((kSketchBuckets & (kSketchBuckets - 1)) == 0);
  constexpr int kBits = 10;
  static_assert(int64_t{1} << kBits == kSketchBuckets);
  return static_cast<int64_t>(random_bits(kSketchSeed, kRotations, static_cast<uint64_t>(run)) >> (64 - kBits));
}

}  // namespace hat
