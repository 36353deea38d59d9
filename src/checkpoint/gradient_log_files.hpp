#pragma once
#include <string>

#include "hat/checkpoint/gradient_log_rows.hpp"
#include "hat/io/checksum.hpp"

namespace hat {

// Names inside the files of a gradient log; src/checkpoint/LOG_FORMAT.md describes them.
inline constexpr const char* kLogFormat = "hat-gradient-log";
inline constexpr int64_t kLogVersion = 2;  // 1: texts of variable length, no computations
inline constexpr const char* kPushTable = "pushes";
inline constexpr const char* kUpdateTable = "updates";
inline constexpr const char* kVersionTable = "versions";
inline constexpr const char* kUnitArray = "units";
inline constexpr const char* kComputationTable = "computations";
inline constexpr const char* kVersionArray = "versions_used";
inline constexpr const char* kRangeArray = "ranges";
inline constexpr const char* kSequenceArray = "sequences";
inline constexpr int64_t kSequenceNumbers = 4;  ///< document, begin, length, earlier

std::string sums_name(const std::string& block);         // "sums/layers.0.mlp"
std::string push_values_name(const std::string& block);  // "push_values/layers.0.mlp"

/// Checksum of all fields of a row but the last one, which holds it.
template <class Row>
uint64_t checksum_of(const Row& row) {
  static_assert(sizeof(Row) % sizeof(uint64_t) == 0);
  Checksum checksum;
  checksum.add(&row, sizeof(Row) - sizeof(uint64_t));
  return checksum.value();
}

}  // namespace hat
