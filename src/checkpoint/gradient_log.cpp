#include "hat/checkpoint/gradient_log.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/gradient_log_files.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "hat/io/compression.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {
constexpr int64_t kTableChunkRows = 256;
constexpr int64_t kUnitChunkRows = 1024;
constexpr int64_t kMostChunkValues = int64_t{1} << 26;  // HDF5 takes chunks of less than 4 GiB

/// Server 0 removes files that two checkpoints lie behind, which a log that is far behind may still be writing.
void sync_file(const fs::path& path) {
  if (fs::exists(path)) fsync_file(path);
}
}  // namespace

/// A file that is being written.
struct GradientLog::Segment {
  fs::path path;
  hdf5::File file;
  hdf5::Table pushes;
  hdf5::Table updates;
  hdf5::Table versions;
  hdf5::Array units;
  std::map<int64_t, hdf5::Array> sums;         // by block, where there is such a payload
  std::map<int64_t, hdf5::Array> push_values;  // the same
  struct Computations {
    hdf5::Table table;
    hdf5::Array versions;
    hdf5::Array ranges;
    hdf5::Array sequences;
  };
  std::optional<Computations> computations;
  // Rows that were not handed to HDF5 yet.
  std::vector<LoggedPush> new_pushes = {};
  std::vector<LoggedUpdate> new_updates = {};
  std::vector<LoggedVersion> new_versions = {};
  std::vector<int64_t> new_units = {};
  std::vector<LoggedComputation> new_computations = {};
  ComputationLists new_lists = {};  // of all those

  void add(LoggedComputation row, const ComputationLists& lists);
};

void GradientLog::Segment::add(LoggedComputation row, const ComputationLists& lists) {
  // Returns the place of the values in the file.
  const auto append = [](const hdf5::Array& array, auto& waiting, const auto& values) {
    const int64_t first = array.rows() + std::ssize(waiting);
    waiting.insert(waiting.end(), values.begin(), values.end());
    return first;
  };
  row.first_version = append(computations->versions, new_lists.versions, lists.versions);
  row.versions = std::ssize(lists.versions);
  row.first_bound = append(computations->ranges, new_lists.bounds, lists.bounds);
  row.bounds = std::ssize(lists.bounds);
  row.first_sequence = append(computations->sequences, new_lists.sequences, lists.sequences);
  row.sequences = std::ssize(lists.sequences);
  row.lists_checksum = checksum_of_lists(lists);
  new_computations.push_back(row);
}

GradientLog::GradientLog(fs::path run, LogAttempt attempt, int64_t server, const ModelLayout& layout,
                         std::vector<Part> parts, const LogConfig& config, int64_t segment_steps)
    : run_(std::move(run)),
      attempt_(std::move(attempt)),
      server_(server),
      parts_(std::move(parts)),
      config_(config),
      segment_steps_(segment_steps) {
  constexpr int64_t kLeastLimit = int64_t{256} << 20;
  int64_t values = 0;
  for (const Part& part : parts_) values += part.count;
  queue_limit_bytes_ = std::max<int64_t>(kLeastLimit, 2 * values * static_cast<int64_t>(sizeof(float)));
  for (const BlockSpec& block : layout.blocks) block_names_.push_back(block.name);
  thread_ = std::thread([this] { work(); });
}

GradientLog::~GradientLog() { finish(); }

void GradientLog::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void GradientLog::enqueue(Entry entry) {
  constexpr int64_t kMuch = int64_t{16} << 20;
  bool is_urgent = false;
  if (entry.values) queued_bytes_ += static_cast<int64_t>(entry.values->size() * sizeof(float));
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (entry.kind == Entry::Kind::update) {
      entry.added_s = now_s();
      unsynced_since_s_ = std::min<double>(unsynced_since_s_, entry.added_s);
    }
    // The rest waits for company: somebody waits for updates only, and each writing costs a flush, if not an fsync.
    // (A checkpoint may be the last thing that a run writes, and what was computed before it must not lack.)
    is_urgent = entry.kind == Entry::Kind::update || queued_bytes_ > kMuch ||
                (entry.kind == Entry::Kind::completed && !ends_with_parts());
    has_urgent_ = has_urgent_ || is_urgent;
    queue_.push_back(std::move(entry));
  }
  if (is_urgent) wake_.notify_one();
}

void GradientLog::add(LoggedPush push, std::vector<int64_t> units, Values values) {
  Entry entry{.kind = Entry::Kind::push, .push = push, .units = std::move(units), .values = std::move(values)};
  entry.step = push.step;
  enqueue(std::move(entry));
}

int64_t GradientLog::add(LoggedUpdate update, Values gradient) {
  Entry entry{.kind = Entry::Kind::update, .update = update, .values = std::move(gradient)};
  entry.step = update.step;
  entry.number = next_number_++;
  const int64_t number = entry.number;
  enqueue(std::move(entry));
  return number;
}

void GradientLog::add(LoggedVersion version) {
  Entry entry{.kind = Entry::Kind::version, .version = version};
  entry.step = version.step;
  enqueue(std::move(entry));
}

void GradientLog::add(LoggedComputation computation, ComputationLists lists) {
  Entry entry{.kind = Entry::Kind::computation, .computation = computation, .lists = std::move(lists)};
  entry.step = computation.step;
  enqueue(std::move(entry));
}

void GradientLog::completed_before(int64_t step) {
  Entry entry{.kind = Entry::Kind::completed};
  entry.step = step;
  enqueue(std::move(entry));
}

void GradientLog::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool GradientLog::may_publish(int64_t number) const {
  rethrow();
  if (config_.durability == LogDurability::commit) return durable_ >= number;
  // What the disk takes normally must not hold training up: hence twice.
  return queued_bytes_ <= queue_limit_bytes_ && now_s() - unsynced_since_s_ <= 2 * config_.interval_s;
}

void GradientLog::close() {
  finish();
  rethrow();
}

void GradientLog::work() {
  const auto interval = std::chrono::duration<double>(config_.interval_s);
  const bool commits = config_.durability == LogDurability::commit;
  last_sync_s_ = now_s();
  bool is_over = false;
  for (bool has_begun = false; !is_over; has_begun = true) {
    std::deque<Entry> batch;
    if (has_begun) {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, interval, [this] { return ending_ || has_urgent_; });
      has_urgent_ = false;
      batch.swap(queue_);
      is_over = ending_;
    }
    try {
      if (!has_begun) segment_of(attempt_.first_step);  // from here on this attempt's records count
      const bool sync = commits || is_over || now_s() - last_sync_s_ >= config_.interval_s;
      write(batch, sync);
      if (sync) {
        last_sync_s_ = now_s();
        const std::lock_guard lock(mutex_);
        const auto oldest = std::ranges::find(queue_, Entry::Kind::update, &Entry::kind);
        unsynced_since_s_ = oldest == queue_.end() ? kNever : oldest->added_s;
      }
      if (is_over) segments_.clear();
    } catch (...) {
      segments_.clear();
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      queue_.clear();
      return;
    }
  }
}

GradientLog::Segment& GradientLog::segment_of(int64_t step) {
  const int64_t boundary = segment_steps_ > 0 ? step / segment_steps_ * segment_steps_ : 0;
  const int64_t first = std::max(boundary, attempt_.first_step);
  const auto found = segments_.find(first);
  if (found != segments_.end()) return *found->second;

  const fs::path path = log_segment(run_, attempt_.number, server_, first);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw Error(fmt::format("{}: cannot create the folder: {}", path.parent_path().string(), error.message()));
  if (fs::exists(path)) throw Error(fmt::format("{}: has been closed, or is of another start", path.string()));
  hdf5::File file = hdf5::File::create(path);
  hdf5::Group root = file.root();
  root.set_text("format", kLogFormat);
  root.set_number("format_version", kLogVersion);
  root.set_number("attempt", attempt_.number);
  root.set_number("attempt_first_step", attempt_.first_step);
  root.set_number("servers", attempt_.servers);
  root.set_number("server", server_);
  root.set_number("first_step", first);
  root.set_text("payload", name_of(attempt_.payload));
  root.set_text("deck", attempt_.deck);
  root.set_number("vocabulary", attempt_.vocabulary);
  root.set_text("dataset_path", attempt_.dataset_path);
  root.set_text("dataset_identity", attempt_.dataset_identity);
  root.set_text("tokenizer", attempt_.tokenizer);
  if (attempt_.payload == LogPayload::metadata) {
    root.set_number("workers", attempt_.workers);
    root.set_number("threads", static_cast<int64_t>(attempt_.compute.threads));
    root.set_number("chunk_tokens", attempt_.compute.chunk_tokens);
    root.set_text("arithmetic", name_of(attempt_.compute.arithmetic));
    root.set_text("recompute", name_of(attempt_.compute.recompute));
    root.set_text("build", attempt_.build);
  }
  root.write_strings("blocks", block_names_);
  const auto table = [&root](const char* name, const auto* row) {
    return root.create_table(name, columns_of(row), kTableChunkRows);
  };
  const bool is_compressed = compresses();
  const hdf5::Storage storage = is_compressed ? hdf5::Storage::deflate : hdf5::Storage::plain;
  auto segment = std::make_unique<Segment>(
      Segment{.path = path,
              .file = std::move(file),
              .pushes = table(kPushTable, static_cast<LoggedPush*>(nullptr)),
              .updates = table(kUpdateTable, static_cast<LoggedUpdate*>(nullptr)),
              .versions = table(kVersionTable, static_cast<LoggedVersion*>(nullptr)),
              .units = root.create_extendible(kUnitArray, hdf5::Element::int64, {0, 1, true}, kUnitChunkRows),
              .sums = {},
              .push_values = {},
              .computations = {}});
  compression_choice_.begin_file(now_s(), is_compressed);
  if (attempt_.payload == LogPayload::metadata && server_ == 0) {
    const auto integers = [&root](const char* name) {
      return root.create_extendible(name, hdf5::Element::int64, {0, 1, true}, kUnitChunkRows);
    };
    segment->computations.emplace(
        Segment::Computations{.table = table(kComputationTable, static_cast<LoggedComputation*>(nullptr)),
                              .versions = integers(kVersionArray),
                              .ranges = integers(kRangeArray),
                              .sequences = root.create_extendible(kSequenceArray, hdf5::Element::int64,
                                                                  {0, kSequenceNumbers, false}, kUnitChunkRows)});
  }
  for (const Part& part : parts_) {
    const std::string& block = block_names_[static_cast<size_t>(part.block)];
    const int64_t chunk = std::min(part.count, kMostChunkValues);
    if (attempt_.payload == LogPayload::sum) {
      hdf5::Array sums =
          root.create_extendible(sums_name(block), hdf5::Element::float32, {0, part.count, false}, 1, chunk, storage);
      sums.set_number("begin", part.begin);
      segment->sums.emplace(part.block, std::move(sums));
    } else if (attempt_.payload == LogPayload::push) {
      hdf5::Array values = root.create_extendible(push_values_name(block), hdf5::Element::float32, {0, 1, true}, chunk);
      segment->push_values.emplace(part.block, std::move(values));
    }
  }
  segment->file.start_appending();
  fsync_file(path);
  fsync_folder(path.parent_path());
  fsync_folder(path.parent_path().parent_path());
  fsync_folder(run_);
  return *segments_.emplace(first, std::move(segment)).first->second;
}

bool GradientLog::compresses() const {
  if (config_.compression != LogCompression::automatic) return config_.compression == LogCompression::deflate;
  return compression_choice_.choose(now_s(), [this] { return measure_compression(newest_sum_); });
}

void GradientLog::write_lists(Segment& segment) {
  const auto extend = [this](hdf5::Array& array, std::vector<int64_t>& values) {
    bytes_ += static_cast<int64_t>(values.size() * sizeof(int64_t));
    if (!values.empty()) array.append(std::ssize(values), values.data());
    values.clear();
  };
  extend(segment.units, segment.new_units);
  if (segment.computations) {
    ComputationLists& lists = segment.new_lists;
    extend(segment.computations->versions, lists.versions);
    extend(segment.computations->ranges, lists.bounds);
    bytes_ += static_cast<int64_t>(lists.sequences.size() * sizeof(Sequence));
    if (!lists.sequences.empty()) {
      segment.computations->sequences.append(std::ssize(lists.sequences), &lists.sequences.front().document);
    }
    lists.sequences.clear();
  }
}

void GradientLog::write_rows(Segment& segment) {
  const auto write = [this](hdf5::Table& table, auto& rows) {
    if (rows.empty()) return;
    bytes_ += static_cast<int64_t>(rows.size() * sizeof(rows.front()));
    for (auto& row : rows) row.row_checksum = checksum_of(row);
    table.append(static_cast<int64_t>(rows.size()), rows.data());
    rows.clear();
  };
  if (segment.computations) write(segment.computations->table, segment.new_computations);
  write(segment.pushes, segment.new_pushes);
  write(segment.updates, segment.new_updates);
  write(segment.versions, segment.new_versions);
}

void GradientLog::write(std::deque<Entry>& batch, bool sync) {
  const double begin_s = now_s();
  int64_t newest = -1;
  int64_t sum_bytes = 0;
  std::set<int64_t> completed;
  for (Entry& entry : batch) {
    if (entry.kind == Entry::Kind::completed) {
      completed.insert(entry.step);
      continue;
    }
    Segment& segment = segment_of(entry.step);
    if (entry.values) {
      const auto bytes = static_cast<int64_t>(entry.values->size() * sizeof(float));
      if (entry.kind == Entry::Kind::update) {
        entry.update.values_checksum = checksum_of_values(*entry.values);
        if (attempt_.payload == LogPayload::sum) {
          hdf5::Array& sums = segment.sums.at(entry.update.block);
          entry.update.sums_row = sums.rows();
          sums.append(1, entry.values->data());
          bytes_ += bytes;
          sum_bytes += bytes;
          if (config_.compression == LogCompression::automatic) {
            newest_sum_.assign(entry.values->begin(),
                               entry.values->begin() + std::min(entry.values->size(), kMostCompressedValues));
          }
        }
      } else if (attempt_.payload == LogPayload::push) {
        hdf5::Array& values = segment.push_values.at(entry.push.block);
        entry.push.first_value = values.rows();
        values.append(static_cast<int64_t>(entry.values->size()), entry.values->data());
        bytes_ += bytes;
      }
      entry.values.reset();
      queued_bytes_ -= bytes;
    }
    switch (entry.kind) {
      case Entry::Kind::push:
        entry.push.first_unit = segment.units.rows() + std::ssize(segment.new_units);
        entry.push.units = std::ssize(entry.units);
        segment.new_units.insert(segment.new_units.end(), entry.units.begin(), entry.units.end());
        segment.new_pushes.push_back(entry.push);
        break;
      case Entry::Kind::update:
        segment.new_updates.push_back(entry.update);
        newest = entry.number;
        break;
      case Entry::Kind::version:
        segment.new_versions.push_back(entry.version);
        break;
      case Entry::Kind::computation:
        segment.add(entry.computation, entry.lists);
        break;
      case Entry::Kind::completed:
        break;
    }
  }
  const FaultEffect effect = batch.empty() ? FaultEffect::none : fault_point(FaultPoint::log);
  for (auto& [first, segment] : segments_) {
    const std::string before = effect == FaultEffect::shorten ? file_bytes(segment->path) : "";
    // First what rows point to, then the rows: a writer that is killed in between, or a reader, finds none without.
    write_lists(*segment);
    segment->file.flush();
    write_rows(*segment);
    segment->file.flush();
    spoil_append(effect, segment->path, before);
    if (sync) sync_file(segment->path);
  }
  if (!completed.empty()) completed_steps_ = *completed.rbegin();
  if (sync) {
    if (newest >= 0) durable_ = newest;
    durable_steps_ = completed_steps_;
  }
  compression_choice_.wrote(sum_bytes, now_s() - begin_s);
  if (!completed.empty()) close_before(*completed.rbegin());
}

void GradientLog::close_before(int64_t step) {
  // The next file begins at `step` or before it, so nothing more comes for the earlier ones.
  const int64_t boundary = segment_steps_ > 0 ? step / segment_steps_ * segment_steps_ : 0;
  for (auto segment = segments_.begin(); segment != segments_.end() && segment->first < boundary;) {
    const fs::path path = segment->second->path;
    segment = segments_.erase(segment);
    sync_file(path);
  }
}

}  // namespace hat
