#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace hat {

/// Splits items of these costs into `parts` sets of nearly equal sums: the largest differencing method (Karmarkar and
/// Karp 1982) for any number of sets. Again and again the two partial splits with the widest spread are joined, the
/// heaviest set of one with the lightest of the other. Returns the items of each set. Equal arguments give equal sets.
std::vector<std::vector<size_t>> balanced_partition(std::span<const double> costs, size_t parts);

}  // namespace hat
