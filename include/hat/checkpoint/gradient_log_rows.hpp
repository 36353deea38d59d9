#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/core/sequence.hpp"
#include "hat/io/hdf5.hpp"
#include "hat/model/compute_options.hpp"

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

/// A unit, or a range of one, that a worker has computed (payload `metadata`, server 0): what it takes to compute it
/// again. The lists it belongs to stand in arrays of their own.
struct LoggedComputation {
  int64_t worker = 0;
  int64_t unit = 0;
  int64_t generation = 0;
  int64_t step = 0;
  int64_t tokens = 0;         ///< target tokens
  int64_t member = -1;        ///< of the gang that computed the sequence; -1: whole sequences
  int64_t first_version = 0;  ///< in /versions_used: one version for each block
  int64_t versions = 0;
  int64_t first_bound = 0;  ///< in /ranges: GangRange::bounds
  int64_t bounds = 0;
  int64_t first_sequence = 0;  ///< in /sequences
  int64_t sequences = 0;
  uint64_t lists_checksum = 0;
  uint64_t row_checksum = 0;
};

/// The lists of a LoggedComputation.
struct ComputationLists {
  std::vector<int64_t> versions;  ///< by block
  std::vector<int64_t> bounds;    ///< empty: whole sequences
  std::vector<Sequence> sequences;
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
  // What gradients depend on beside deck and text: payload `metadata`, from which they are computed again.
  int64_t workers = 0;
  ComputeOptions compute = {};
  std::string build = {};  ///< of the program
};

/// Gradients stand in the log.
inline bool holds_gradients(LogPayload payload) { return payload == LogPayload::sum || payload == LogPayload::push; }

/// As in a deck.
std::string name_of(LogPayload payload);

/// What stands as `values_checksum`: XXH64 of the bytes.
uint64_t checksum_of_values(std::span<const float> values);
/// What stands as `lists_checksum`.
uint64_t checksum_of_lists(const ComputationLists& lists);

/// Columns of the tables, as the rows above have them.
const std::vector<hdf5::TableColumn>& columns_of(const LoggedPush* row);
const std::vector<hdf5::TableColumn>& columns_of(const LoggedUpdate* row);
const std::vector<hdf5::TableColumn>& columns_of(const LoggedVersion* row);
const std::vector<hdf5::TableColumn>& columns_of(const LoggedComputation* row);

/// <run>/log/attempt-0001/server-0.step-00001000.h5: the steps of one server from there on, up to the next such file.
std::filesystem::path log_folder(const std::filesystem::path& run, int64_t attempt);
std::filesystem::path log_segment(const std::filesystem::path& run, int64_t attempt, int64_t server, int64_t step);

}  // namespace hat
