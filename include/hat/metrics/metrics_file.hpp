#pragma once
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hat/core/background_thread.hpp"
#include "hat/io/hdf5.hpp"

namespace hat {

/// A column of a table in metrics.h5.
struct MetricsColumn {
  enum class Kind { integer, real };  // int64, float64
  std::string name;
  Kind kind = Kind::real;
  std::string units;
  std::string meaning;
};

/// A table: a group with one array per column, all of the same number of rows. The first column is the step by which
/// rows are sorted.
struct MetricsTable {
  std::string name;
  std::string meaning;
  std::vector<MetricsColumn> columns;
};

/// metrics.h5 of a run while it grows (src/metrics/FORMAT.md). The caller never waits for the disk: rows are kept in
/// memory, and a thread of this object saves them now and then. A save copies the file, appends, and renames the copy
/// over it, so that at every moment, whenever the process is killed, the name holds a whole file with the rows of all
/// saves that ended. Saves begin at least ten seconds apart, and take at most about one hundredth of the time, but for
/// those that the caller asks for.
class MetricsFile {
 public:
  static constexpr const char* kFormat = "hat-metrics";
  static constexpr int64_t kFormatVersion = 3;

  /// `first_step`: steps done when this part of the run begins. 0: a new file. Otherwise rows of later steps, which
  /// will be made again, are cut off the file that is there; one that cannot be continued is set aside as
  /// metrics.h5.damaged, with a line on standard error. `blocks`: names, stored beside the tables.
  MetricsFile(std::filesystem::path path, std::vector<MetricsTable> tables, std::vector<std::string> blocks,
              int64_t first_step);

  /// Adds a row to a table (its number in `tables`), one value per column.
  void add(size_t table, std::span<const double> row);
  /// Starts a save when one is due. Throws Error when an earlier one failed.
  void save_if_due();
  /// As save_if_due; now one is due, or as soon as the one under way has ended (save_if_due then starts it).
  void save_soon();
  /// Saves what is left and waits for it.
  void close();

 private:
  using Rows = std::vector<std::vector<double>>;  // by column
  /// What the saving thread works on.
  struct Store {
    std::filesystem::path path;
    std::vector<MetricsTable> tables;
    std::vector<std::string> blocks;
  };
  static void begin_file(const Store& store, int64_t first_step);
  static void save(const Store& store, const std::vector<Rows>& rows);
  void start_save();
  void finish_save();

  Store store_;
  std::vector<Rows> rows_;      // not saved yet, by table
  std::future<double> saving_;  // its duration in seconds
  double next_save_s_ = 0;
  bool is_wanted_ = false;   // a save, at once
  BackgroundThread thread_;  // last member: it ends before what its jobs use
};

/// A table as it stands in a file, by column name.
class MetricsTableReader {
 public:
  /// Throws InputError naming the file when it is no whole metrics.h5 of this version, or lacks the table.
  MetricsTableReader(const hdf5::File& file, const std::string& table);

  int64_t rows() const { return rows_; }
  /// Values of a column, integers too. Throws InputError when there is none, or it has another number of rows.
  std::vector<double> column(const std::string& name) const;

 private:
  hdf5::Group group_;
  int64_t rows_;
};

/// Opens `path` and checks that it is a metrics.h5 of this version. Throws InputError with one line otherwise.
hdf5::File open_metrics(const std::filesystem::path& path);

}  // namespace hat
