#include "hat/metrics/metrics_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "hat/core/build_info.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kChunkRows = 512;
constexpr double kSaveEvery_s = 10;
constexpr double kPauseOverSave = 100;  // a save that took long, of a large file, is not soon followed by the next

fs::path with_suffix(const fs::path& path, const char* suffix) { return path.string() + suffix; }

void create_table(hdf5::Group& root, const MetricsTable& table) {
  hdf5::Group group = root.create_group(table.name);
  group.set_text("meaning", table.meaning);
  std::vector<std::string> names;
  for (const MetricsColumn& column : table.columns) {
    const auto element = column.kind == MetricsColumn::Kind::integer ? hdf5::Element::int64 : hdf5::Element::float64;
    hdf5::Array array = group.create_extendible(column.name, element, {0, 1, true}, kChunkRows);
    array.set_text("units", column.units);
    array.set_text("meaning", column.meaning);
    names.push_back(column.name);
  }
  group.set_text("columns", fmt::format("{}", fmt::join(names, " ")));
}

void create_file(const fs::path& path, const std::vector<MetricsTable>& tables,
                 const std::vector<std::string>& blocks) {
  hdf5::File file = hdf5::File::create(path);
  {
    hdf5::Group root = file.root();
    root.set_text("format", MetricsFile::kFormat);
    root.set_number("format_version", MetricsFile::kFormatVersion);
    root.set_text("revision", build_info().revision);
    root.write_strings("blocks", blocks);
    for (const MetricsTable& table : tables) create_table(root, table);
  }
  file.close();
}

void copy_whole(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) throw Error(fmt::format("{}: cannot be written (disk full?): {}", to.string(), error.message()));
}

/// Keeps the rows of steps up to `last_step`. Throws InputError when the file is not one that rows can be added to.
void cut_behind(const fs::path& path, const std::vector<MetricsTable>& tables, int64_t last_step) {
  std::vector<int64_t> kept;
  {
    const hdf5::File file = open_metrics(path);
    for (const MetricsTable& table : tables) {
      const MetricsTableReader reader(file, table.name);
      for (const MetricsColumn& column : table.columns) reader.column(column.name);  // all there, and equally long
      const std::vector<double> steps = reader.column(table.columns.front().name);
      kept.push_back(std::upper_bound(steps.begin(), steps.end(), static_cast<double>(last_step)) - steps.begin());
    }
  }
  hdf5::File file = hdf5::File::open_to_write(path);
  for (size_t t = 0; t < tables.size(); ++t) {
    const hdf5::Group group = file.root().open_group(tables[t].name);
    for (const MetricsColumn& column : tables[t].columns) group.open_array(column.name).resize(kept[t]);
  }
  file.close();
}

}  // namespace

MetricsFile::MetricsFile(fs::path path, std::vector<MetricsTable> tables, std::vector<std::string> blocks,
                         int64_t first_step)
    : store_{.path = std::move(path), .tables = std::move(tables), .blocks = std::move(blocks)} {
  for (const MetricsTable& table : store_.tables) rows_.emplace_back(table.columns.size());
  saving_ = thread_.submit([this, first_step] {
    const double start_s = now_s();
    begin_file(store_, first_step);
    return now_s() - start_s;
  });
}

void MetricsFile::add(size_t table, std::span<const double> row) {
  Rows& columns = rows_.at(table);
  if (row.size() != columns.size()) {
    throw Error(fmt::format("a row of {} values for the {} columns of '{}'", row.size(), columns.size(),
                            store_.tables[table].name));
  }
  for (size_t c = 0; c < row.size(); ++c) columns[c].push_back(row[c]);
}

void MetricsFile::begin_file(const Store& store, int64_t first_step) {
  Draft draft(store.path);
  if (first_step > 0 && fs::exists(store.path)) {
    try {
      copy_whole(store.path, draft.path());
      cut_behind(draft.path(), store.tables, first_step);
      draft.rename();
      return;
    } catch (const InputError& error) {
      // What is wrong was found in a copy, whose name says nothing to anybody.
      std::string reason = error.what();
      const std::string copy = draft.path().string() + ": ";
      if (reason.starts_with(copy)) reason.erase(0, copy.size());
      fmt::print(stderr, "hat: {}: cannot be continued, is kept as {}.damaged ({})\n", store.path.string(),
                 store.path.filename().string(), reason);
      rename_durably(store.path, with_suffix(store.path, ".damaged"));
    }
  }
  create_file(draft.path(), store.tables, store.blocks);
  draft.rename();
}

void MetricsFile::save(const Store& store, const std::vector<Rows>& rows) {
  const FaultEffect effect = fault_point(FaultPoint::metrics);
  Draft draft(store.path);
  copy_whole(store.path, draft.path());
  hdf5::File file = hdf5::File::open_to_write(draft.path());
  for (size_t t = 0; t < rows.size(); ++t) {
    const hdf5::Group group = file.root().open_group(store.tables[t].name);
    for (size_t c = 0; c < rows[t].size(); ++c) {
      group.open_array(store.tables[t].columns[c].name)
          .append(static_cast<int64_t>(rows[t][c].size()), rows[t][c].data());
    }
  }
  file.close();
  spoil_write(effect, draft.path());
  draft.rename();
}

void MetricsFile::finish_save() {
  const double duration_s = saving_.get();
  next_save_s_ = now_s() + std::max(kSaveEvery_s, kPauseOverSave * duration_s);
}

void MetricsFile::start_save() {
  std::vector<Rows> rows;
  for (const MetricsTable& table : store_.tables) rows.emplace_back(table.columns.size());
  std::swap(rows, rows_);
  is_wanted_ = false;
  saving_ = thread_.submit([this, rows = std::move(rows)] {
    const double start_s = now_s();
    save(store_, rows);
    return now_s() - start_s;
  });
}

void MetricsFile::save_if_due() {
  if (saving_.valid()) {
    if (!is_ready(saving_)) return;
    finish_save();
  }
  if (is_wanted_ || now_s() >= next_save_s_) start_save();
}

void MetricsFile::save_soon() {
  is_wanted_ = true;
  save_if_due();
}

void MetricsFile::close() {
  if (saving_.valid()) finish_save();
  start_save();
  finish_save();
}

hdf5::File open_metrics(const fs::path& path) {
  hdf5::File file = hdf5::File::open(path);
  const hdf5::Group root = file.root();
  if (!root.has_attribute("format") || root.text("format") != MetricsFile::kFormat) {
    throw InputError(path.string(), "", "is an HDF5 file, but not the metrics of a run");
  }
  const auto version = root.number<int64_t>("format_version");
  if (version != MetricsFile::kFormatVersion) {
    throw InputError(path.string(), "format_version",
                     fmt::format("is {}, this program reads {}", version, MetricsFile::kFormatVersion));
  }
  return file;
}

MetricsTableReader::MetricsTableReader(const hdf5::File& file, const std::string& table)
    : group_(file.root().open_group(table)), rows_(group_.open_array("step").rows()) {}

std::vector<double> MetricsTableReader::column(const std::string& name) const {
  const hdf5::Array array = group_.open_array(name);
  if (array.rows() != rows_ || !array.is_vector()) {
    throw InputError(array.file(), array.name(),
                     fmt::format("has {} rows, 'step' beside it has {}", array.rows(), rows_));
  }
  std::vector<double> values(static_cast<size_t>(rows_));
  array.read(0, rows_, values.data());
  return values;
}

}  // namespace hat
