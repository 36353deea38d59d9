#include "hat/io/checksum.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace hat {

namespace {
constexpr uint64_t kPrime1 = 0x9e3779b185ebca87ULL;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fULL;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9ULL;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63ULL;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5ULL;
static_assert(std::endian::native == std::endian::little, "checksums are defined over little-endian bytes");

template <class T>
T load(const unsigned char* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * kPrime1 + kPrime4; }

void add_stripe(std::array<uint64_t, 4>& lanes, const unsigned char* data) {
  for (size_t i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load<uint64_t>(data + 8 * i));
}
}  // namespace

void Checksum::add(const void* data, size_t size_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  total_bytes_ += size_bytes;
  if (pending_bytes_ > 0) {
    const size_t taken = std::min(size_bytes, pending_.size() - pending_bytes_);
    std::memcpy(pending_.data() + pending_bytes_, bytes, taken);
    pending_bytes_ += taken;
    bytes += taken;
    size_bytes -= taken;
    if (pending_bytes_ < pending_.size()) return;
    add_stripe(lanes_, pending_.data());
    pending_bytes_ = 0;
  }
  for (; size_bytes >= pending_.size(); bytes += pending_.size(), size_bytes -= pending_.size()) {
    add_stripe(lanes_, bytes);
  }
  if (size_bytes > 0) std::memcpy(pending_.data(), bytes, size_bytes);
  pending_bytes_ = size_bytes;
}

uint64_t Checksum::value() const {
  uint64_t hash = kPrime5;
  if (total_bytes_ >= pending_.size()) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merge(hash, lane);
  }
  hash += total_bytes_;
  const unsigned char* data = pending_.data();
  size_t left = pending_bytes_;
  for (; left >= 8; data += 8, left -= 8) {
    hash = std::rotl(hash ^ round(0, load<uint64_t>(data)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(data) * kPrime1), 23) * kPrime2 + kPrime3;
    data += 4;
    left -= 4;
  }
  for (; left > 0; ++data, --left) hash = std::rotl(hash ^ (*data * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string checksum_text(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

}  // namespace hat
