#pragma once
#include <cstdint>

#include "hat/dataset/dataset.hpp"
#include "hat/io/checksum.hpp"
#include "hat/io/hdf5.hpp"

namespace hat::dataset_format {

// Names and numbers of the dataset.h5 layout, described in src/dataset/FORMAT.md.
inline constexpr const char* kFormat = "hat-dataset";
inline constexpr int64_t kVersion = 1;
inline constexpr const char* kSplitNames[] = {"train", "validation"};  // in the order of Split

inline const char* split_name(Split split) { return kSplitNames[static_cast<int>(split)]; }

/// The smallest type that holds every token of the vocabulary.
hdf5::Element token_element(int64_t vocabulary);

/// Identity of a dataset from the checksums of train tokens, train offsets, validation tokens, validation offsets.
std::string identity(const uint64_t (&checksums)[4]);

}  // namespace hat::dataset_format
