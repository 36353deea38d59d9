#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/io/hdf5.hpp"

namespace hat {

// What stands in the gradient log, row by row; src/checkpoint/LOG_FORMAT.md describes the files. Every field is 8 bytes
// wide, so that a row is its table's row (hdf5::Table). `row_checksum` is of all fields before it.

/// A push that was added to a sum, or applied as it came (unbounded).
struct LoggedPush {
  int64_t worker = 0;
  int64_t sequence_number = 0;
  int64_t generation = 0;
  int64_t step = 0;
  int64_t block = 0;
  int64_t begin = 0;  ///< first element, counted from the block's beginning
  int64_t count = 0;
  int64_t tokens = 0;
  int64_t complete = 0;  ///< 1: the sum of the whole step
  int64_t base_version = 0;
  int64_t order = 0;
  int64_t codec = 0;
  int64_t first_unit = 0;  ///< in /units
  int64_t units = 0;
  int64_t first_value = -1;  ///< in /push_values/<block>; -1: its values were not logged
  uint64_t values_checksum = 0;
  uint64_t row_checksum = 0;
};

/// What the optimizer was given once: the sum of a step (bounded), or a push (unbounded).
struct LoggedUpdate {
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t step_tokens = 0;  ///< target tokens of the whole step
  int64_t block = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t version = 0;    ///< updates of the part before this one
  int64_t tokens = 0;     ///< target tokens in the gradient
  int64_t sums_row = -1;  ///< in /sums/<block>; -1: the gradient was not logged
  double scale = 0;       ///< what the gradient is multiplied by: one over the tokens, times clipping
  double staleness = 0;
  double learning_rate = 0;
  double muon_learning_rate = 0;
  double sum_of_squares = 0;  ///< of the mean gradient over this part; 0: unbounded
  uint64_t values_checksum = 0;
  uint64_t row_checksum = 0;
};

/// A version of a part as it was published.
struct LoggedVersion {
  int64_t step = 0;
  int64_t block = 0;
  int64_t begin = 0;
  int64_t version = 0;
  uint64_t values_checksum = 0;
  uint64_t row_checksum = 0;
};

/// The same in all files of an attempt: from the start of a job to its end.
struct LogAttempt {
  int64_t number = 1;
  int64_t first_step = 0;
  int64_t servers = 0;
  LogPayload payload = LogPayload::sum;
  std::string deck;  ///< the effective deck
  int64_t vocabulary = 0;
  std::string dataset_path;
  std::string dataset_identity;
  std::string tokenizer;
};

/// As in a deck.
std::string name_of(LogPayload payload);

/// What stands as `values_checksum`: XXH64 of the bytes.
uint64_t checksum_of_values(std::span<const float> values);

/// Columns of the tables, as the rows above have them.
const std::vector<hdf5::TableColumn>& columns_of(const LoggedPush* row);
const std::vector<hdf5::TableColumn>& columns_of(const LoggedUpdate* row);
const std::vector<hdf5::TableColumn>& columns_of(const LoggedVersion* row);

/// <run>/log/attempt-0001/server-0.step-00001000.h5: the steps of one server from there on, up to the next such file.
std::filesystem::path log_folder(const std::filesystem::path& run, int64_t attempt);
std::filesystem::path log_segment(const std::filesystem::path& run, int64_t attempt, int64_t server, int64_t step);

}  // namespace hat
