#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hat {

/// XXH64 with seed 0 (Collet, xxHash specification 0.1.1), fed in pieces. Finds damage; not meant against forgery.
class Checksum {
 public:
  void add(const void* data, size_t size_bytes);
  /// Of all bytes added so far; more may be added afterwards.
  uint64_t value() const;

 private:
  std::array<uint64_t, 4> lanes_{0x60ea27eeadc0b5d6ULL, 0xc2b2ae3d27d4eb4fULL, 0, 0x61c8864e7a143579ULL};
  std::array<unsigned char, 32> pending_{};
  size_t pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

/// 16 hexadecimal digits.
std::string checksum_text(uint64_t checksum);

}  // namespace hat
