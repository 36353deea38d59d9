#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hat/checkpoint/gradient_log_rows.hpp"
#include "hat/io/compression.hpp"
#include "hat/model/shard_plan.hpp"

namespace hat {

/// Writes the gradient log of one server. A thread of its own does the work: what has gathered while it wrote is
/// written, flushed and made durable together (group commit).
class GradientLog {
 public:
  using Values = std::shared_ptr<const std::vector<float>>;

  /// `parts`: of the server. `segment_steps`: a new file begins where a step is a multiple of it; 0: one file.
  GradientLog(std::filesystem::path run, LogAttempt attempt, int64_t server, const ModelLayout& layout,
              std::vector<Part> parts, const LogConfig& config, int64_t segment_steps);
  /// Writes what is queued as far as it can.
  ~GradientLog();
  GradientLog(const GradientLog&) = delete;
  GradientLog& operator=(const GradientLog&) = delete;

  /// What the log wants to have of a push beside its row.
  bool wants_pushes() const { return config_.payload == LogPayload::push; }

  /// Checksums and places of values are filled in here. `values` may be null where the payload is another.
  void add(LoggedPush push, std::vector<int64_t> units, Values values);
  /// Returns the number that `may_publish` is asked with. `gradient`: all `count` values.
  int64_t add(LoggedUpdate update, Values gradient);
  void add(LoggedVersion version);
  /// Payload `metadata`, server 0. Checksums and places are filled in here.
  void add(LoggedComputation computation, ComputationLists lists);
  /// The server has nothing more to say of steps before this one. Never less than what was told before.
  void completed_before(int64_t step);
  /// That is when all its parts have had their updates; otherwise (computations are logged here) when the steps are
  /// committed.
  bool ends_with_parts() const { return config_.payload != LogPayload::metadata || server_ != 0; }
  /// The newest step told by completed_before: all that was said of steps before it is on the disk.
  int64_t durable_steps() const { return durable_steps_; }

  /// Whether the update of that number may be published: log.durability `commit`: it is on disk; `interval`: not too
  /// much waits to be written, and nothing waits for the disk longer than twice log.interval_s. Throws what writing
  /// ended with.
  bool may_publish(int64_t number) const;
  /// Rows and values that were written, before compression.
  int64_t bytes() const { return bytes_; }
  /// Everything is on disk, and the files are closed. Throws what writing ended with.
  void close();

 private:
  struct Entry {
    enum class Kind { push, update, version, computation, completed } kind = Kind::completed;
    LoggedPush push = {};
    LoggedUpdate update = {};
    LoggedVersion version = {};
    LoggedComputation computation = {};
    ComputationLists lists = {};
    std::vector<int64_t> units = {};
    Values values = {};
    int64_t number = -1;  // of an update
    int64_t step = 0;
    double added_s = 0;  // of an update
  };
  struct Segment;

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  void enqueue(Entry entry);
  void work();
  void finish();
  void write(std::deque<Entry>& batch, bool sync);
  void close_before(int64_t step);
  void rethrow() const;
  Segment& segment_of(int64_t step);
  void write_lists(Segment& segment);  // what rows point to
  void write_rows(Segment& segment);
  bool compresses() const;

  const std::filesystem::path run_;
  const LogAttempt attempt_;
  const int64_t server_;
  const std::vector<Part> parts_;
  const LogConfig config_;
  const int64_t segment_steps_;
  std::vector<std::string> block_names_;
  int64_t queue_limit_bytes_;

  // Of the thread alone.
  std::map<int64_t, std::unique_ptr<Segment>> segments_;  // by first step
  double last_sync_s_ = 0;
  int64_t completed_steps_ = 0;    // told by completed_before, and written
  std::vector<float> newest_sum_;  // log.compression auto: a piece of what shall be written
  CompressionChoice compression_choice_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> queue_;
  bool has_urgent_ = false;  // something in it shall be written at once
  int64_t next_number_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::atomic<int64_t> durable_{-1};  // newest number that is on disk
  std::atomic<int64_t> durable_steps_{0};
  std::atomic<int64_t> queued_bytes_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<double> unsynced_since_s_{kNever};  // when the oldest update that is not on disk was added
  std::thread thread_;
};

}  // namespace hat
