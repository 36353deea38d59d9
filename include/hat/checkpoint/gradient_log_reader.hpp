#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "hat/checkpoint/gradient_log_rows.hpp"

namespace hat {

/// One file of a log, as far as it can be read.
struct LoggedSegment {
  std::filesystem::path file;
  int64_t server = 0;
  int64_t first_step = 0;
};

/// A log that is read, after a run or while it goes on. What was read of a file once is kept: of a log that grows this
/// object sees no more than that.
class GradientLogReader {
 public:
  struct Attempt {
    LogAttempt header;
    std::vector<LoggedSegment> segments;  // by server, then first step
  };

  /// Looks at all attempts of the run. Files that cannot be read are passed over, with a line in `problems`; those that
  /// end before step `from` are not looked at.
  explicit GradientLogReader(const std::filesystem::path& run, int64_t from = 0);
  ~GradientLogReader();
  GradientLogReader(GradientLogReader&&) noexcept;
  GradientLogReader& operator=(GradientLogReader&&) noexcept;

  const std::vector<Attempt>& attempts() const { return attempts_; }  ///< ascending
  const std::vector<std::string>& problems() const { return problems_; }
  /// The attempt whose records of step `step` count: the newest that began at or before it. Null: none.
  const Attempt* attempt_of(int64_t step) const;
  /// Where the attempt's records end to count: the first step of the next attempt, or the largest number.
  int64_t end_of(const Attempt& attempt) const;

  /// The rows of steps [first, end) of one server, in the order of writing; ends at the first one that is damaged, with
  /// a line in `problems`.
  std::vector<LoggedUpdate> updates(const Attempt& attempt, int64_t server, int64_t first, int64_t end);
  std::vector<LoggedVersion> versions(const Attempt& attempt, int64_t server, int64_t first, int64_t end);

  struct Push {
    LoggedPush row;
    std::vector<int64_t> units;
  };
  std::vector<Push> pushes(const Attempt& attempt, int64_t server, int64_t first, int64_t end);

  struct Computation {
    LoggedComputation row;
    ComputationLists lists;
  };
  /// Payload `metadata`; likewise.
  std::vector<Computation> computations(const Attempt& attempt, int64_t first, int64_t end);

  /// The gradient of an update. Throws InputError when it is missing or damaged.
  void read(const Attempt& attempt, int64_t server, const LoggedUpdate& update, std::vector<float>& gradient);
  /// The values of a push (payload `push`).
  void read(const Attempt& attempt, int64_t server, const LoggedPush& push, std::vector<float>& values);

 private:
  struct OpenSegment;
  template <class Row>
  struct Rows {
    std::vector<Row> sound;  // up to the first damaged one
    bool are_all = true;
  };
  template <class Row>
  using RowsOfFiles = std::map<std::filesystem::path, Rows<Row>>;

  const LoggedSegment& segment_of(const Attempt& attempt, int64_t server, int64_t step) const;
  OpenSegment& open(const LoggedSegment& segment);
  template <class Row>
  const Rows<Row>& rows_in(const LoggedSegment& segment, const char* table);
  template <class Row>
  std::vector<Row> rows(const Attempt& attempt, int64_t server, int64_t first, int64_t end, const char* table);

  std::vector<Attempt> attempts_;
  std::vector<std::string> problems_;
  std::map<int64_t, std::unique_ptr<OpenSegment>> open_;  // by server: the one that was read last
  std::tuple<RowsOfFiles<LoggedPush>, RowsOfFiles<LoggedUpdate>, RowsOfFiles<LoggedVersion>,
             RowsOfFiles<LoggedComputation>>
      rows_;
  int64_t kept_bytes_ = 0;  // of rows_
};

/// Takes back the marks of killed writers, so that h5dump opens the files, and removes empty files; for a run that
/// nobody trains in. No reader of this process may be left: HDF5 opens a file that it has open already without looking
/// at its mark. Waits up to two seconds for writers that are still dying; says on stderr which files keep their mark.
void clear_log_writers(const std::filesystem::path& run);

/// log.keep = recovery: removes the files that recovery from a checkpoint of step `step` or a later one never reads.
void prune_log(const std::filesystem::path& run, int64_t step);

/// The number for the next attempt of a run.
int64_t next_log_attempt(const std::filesystem::path& run);

}  // namespace hat
