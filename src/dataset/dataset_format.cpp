#include "hat/dataset/dataset_format.hpp"

namespace hat::dataset_format {

hdf5::Element token_element(int64_t vocabulary) {
  if (vocabulary <= 0x100) return hdf5::Element::uint8;
  if (vocabulary <= 0x10000) return hdf5::Element::uint16;
  return hdf5::Element::int32;
}

std::string identity(const uint64_t (&checksums)[4]) {
  Checksum all;
  all.add(checksums, sizeof checksums);
  return checksum_text(all.value());
}

}  // namespace hat::dataset_format
