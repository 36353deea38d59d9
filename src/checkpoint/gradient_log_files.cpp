#include "checkpoint/gradient_log_files.hpp"

#include <fmt/format.h>

namespace hat {

namespace {

using hdf5::TableColumn;

std::vector<TableColumn> integers(const std::vector<std::string>& names) {
  std::vector<TableColumn> columns;
  columns.reserve(names.size());
  for (const std::string& name : names) columns.push_back({name, hdf5::Element::int64});
  return columns;
}

void append(std::vector<TableColumn>& columns, hdf5::Element element, const std::vector<std::string>& names) {
  for (const std::string& name : names) columns.push_back({name, element});
}
}  // namespace

const std::vector<TableColumn>& columns_of(const LoggedPush* /*row*/) {
  static const std::vector<TableColumn> kColumns = [] {
    std::vector<TableColumn> columns =
        integers({"worker", "sequence_number", "generation", "step", "block", "begin", "count", "tokens", "complete",
                  "base_version", "order", "codec", "first_unit", "units", "first_value"});
    append(columns, hdf5::Element::uint64, {"values_checksum", "row_checksum"});
    return columns;
  }();
  static_assert(sizeof(LoggedPush) == 17 * sizeof(uint64_t));
  return kColumns;
}

const std::vector<TableColumn>& columns_of(const LoggedUpdate* /*row*/) {
  static const std::vector<TableColumn> kColumns = [] {
    std::vector<TableColumn> columns =
        integers({"step", "epoch", "step_tokens", "block", "begin", "count", "version", "tokens", "sums_row"});
    append(columns, hdf5::Element::float64,
           {"scale", "staleness", "learning_rate", "muon_learning_rate", "sum_of_squares"});
    append(columns, hdf5::Element::uint64, {"values_checksum", "row_checksum"});
    return columns;
  }();
  static_assert(sizeof(LoggedUpdate) == 16 * sizeof(uint64_t));
  return kColumns;
}

const std::vector<TableColumn>& columns_of(const LoggedVersion* /*row*/) {
  static const std::vector<TableColumn> kColumns = [] {
    std::vector<TableColumn> columns = integers({"step", "block", "begin", "version"});
    append(columns, hdf5::Element::uint64, {"values_checksum", "row_checksum"});
    return columns;
  }();
  static_assert(sizeof(LoggedVersion) == 6 * sizeof(uint64_t));
  return kColumns;
}

const std::vector<TableColumn>& columns_of(const LoggedComputation* /*row*/) {
  static const std::vector<TableColumn> kColumns = [] {
    std::vector<TableColumn> columns =
        integers({"worker", "unit", "generation", "step", "tokens", "member", "first_version", "versions",
                  "first_bound", "bounds", "first_sequence", "sequences"});
    append(columns, hdf5::Element::uint64, {"lists_checksum", "row_checksum"});
    return columns;
  }();
  static_assert(sizeof(LoggedComputation) == 14 * sizeof(uint64_t));
  return kColumns;
}

uint64_t checksum_of_lists(const ComputationLists& lists) {
  static_assert(sizeof(Sequence) == kSequenceNumbers * sizeof(int64_t));
  Checksum checksum;
  checksum.add(lists.versions.data(), lists.versions.size() * sizeof(int64_t));
  checksum.add(lists.bounds.data(), lists.bounds.size() * sizeof(int64_t));
  checksum.add(lists.sequences.data(), lists.sequences.size() * sizeof(Sequence));
  return checksum.value();
}

uint64_t checksum_of_values(std::span<const float> values) {
  Checksum checksum;
  checksum.add(values.data(), values.size_bytes());
  return checksum.value();
}

std::filesystem::path log_folder(const std::filesystem::path& run, int64_t attempt) {
  return run / "log" / fmt::format("attempt-{:04}", attempt);
}

std::filesystem::path log_segment(const std::filesystem::path& run, int64_t attempt, int64_t server, int64_t step) {
  return log_folder(run, attempt) / fmt::format("server-{}.step-{:08}.h5", server, step);
}

std::string sums_name(const std::string& block) { return "sums/" + block; }
std::string push_values_name(const std::string& block) { return "push_values/" + block; }

std::string name_of(LogPayload payload) {
  switch (payload) {
    case LogPayload::none:
      return "none";
    case LogPayload::metadata:
      return "metadata";
    case LogPayload::sum:
      return "sum";
    case LogPayload::push:
      break;
  }
  return "push";
}

}  // namespace hat
