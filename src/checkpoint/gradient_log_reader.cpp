#include "hat/checkpoint/gradient_log_reader.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "checkpoint/gradient_log_files.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/io/durable.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

/// The number in "<prefix>0042<suffix>"; nothing for other names.
std::optional<int64_t> number_in_name(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() < prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0) return std::nullopt;
  return number;
}

/// Folders of attempts, by number.
std::vector<std::pair<int64_t, fs::path>> attempt_folders(const fs::path& run) {
  std::vector<std::pair<int64_t, fs::path>> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "log", error)) {
    const auto number = number_in_name(entry.path().filename().string(), "attempt-", "");
    if (number && entry.is_directory()) folders.emplace_back(*number, entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// Files of an attempt, by server and first step, as their names say.
std::vector<LoggedSegment> segment_files(const fs::path& folder) {
  std::vector<LoggedSegment> segments;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t dot = name.find('.');
    if (dot == std::string::npos) continue;
    const auto server = number_in_name(std::string_view(name).substr(0, dot), "server-", "");
    const auto step = number_in_name(std::string_view(name).substr(dot), ".step-", ".h5");
    if (server && step) segments.push_back({.file = entry.path(), .server = *server, .first_step = *step});
  }
  std::sort(segments.begin(), segments.end(), [](const LoggedSegment& a, const LoggedSegment& b) {
    return std::pair(a.server, a.first_step) < std::pair(b.server, b.first_step);
  });
  return segments;
}

/// The one of `choices` that an attribute names.
template <class T>
T named(const hdf5::Group& root, const char* attribute, std::initializer_list<T> choices) {
  const std::string name = root.text(attribute);
  for (const T choice : choices) {
    if (name_of(choice) == name) return choice;
  }
  throw InputError(root.file(), fmt::format("attribute '{}'", attribute), fmt::format("'{}' is unknown", name));
}

/// Of the file that this name stands for: another one, put there by hand, would speak of other steps.
LogAttempt header_of(const hdf5::File& file, int64_t attempt, const LoggedSegment& segment) {
  const hdf5::Group root = file.root();
  if (!root.has_attribute("format") || root.text("format") != kLogFormat) {
    throw InputError(file.path(), "", "is an HDF5 file, but no gradient log");
  }
  const auto version = root.number<int64_t>("format_version");
  if (version < 1 || version > kLogVersion) {
    throw InputError(file.path(), "format_version", fmt::format("is {}, this program reads {}", version, kLogVersion));
  }
  for (const auto& [attribute, expected] : {std::pair("attempt", attempt), std::pair("server", segment.server),
                                            std::pair("first_step", segment.first_step)}) {
    const auto number = root.number<int64_t>(attribute);
    if (number == expected) continue;
    throw InputError(file.path(), attribute,
                     fmt::format("is {}, but the name says {}: it is another's file", number, expected));
  }
  LogAttempt header{.number = root.number<int64_t>("attempt"),
                    .first_step = root.number<int64_t>("attempt_first_step"),
                    .servers = root.number<int64_t>("servers"),
                    .payload = LogPayload::none,
                    .deck = root.text("deck"),
                    .vocabulary = root.number<int64_t>("vocabulary"),
                    .dataset_path = root.text("dataset_path"),
                    .dataset_identity = root.text("dataset_identity"),
                    .tokenizer = root.text("tokenizer")};
  if (root.has_attribute("workers")) {
    header.workers = root.number<int64_t>("workers");
    header.compute.threads = static_cast<int>(root.number<int64_t>("threads"));
    header.compute.chunk_tokens = root.number<int64_t>("chunk_tokens");
    header.compute.arithmetic = named(root, "arithmetic", {Element::fp32, Element::bf16});
    header.compute.recompute = named(root, "recompute", {Recompute::none, Recompute::inner, Recompute::full});
    header.build = root.text("build");
  }
  header.payload = named(root, "payload", {LogPayload::none, LogPayload::metadata, LogPayload::sum, LogPayload::push});
  return header;
}

void check_values(const std::string& file, const std::string& array, const std::vector<float>& values,
                  uint64_t expected) {
  if (checksum_of_values(values) == expected) return;
  throw InputError(file, array, "is damaged: its checksum is not that of its values");
}

}  // namespace

/// A file of one server that is open, with what every read of a gradient in it needs.
struct GradientLogReader::OpenSegment {
  fs::path path;
  hdf5::File file;
  std::vector<std::string> blocks = file.root().read_strings("blocks");
  std::map<int64_t, hdf5::Array> values = {};  // by block: /sums or /push_values
  std::optional<std::vector<int64_t>> units = {};

  const hdf5::Array& values_of(int64_t block, std::string (*name)(const std::string& block)) {
    const auto found = values.find(block);
    if (found != values.end()) return found->second;
    if (block < 0 || block >= std::ssize(blocks)) {
      throw InputError(path.string(), "/blocks", fmt::format("has no block {}, of which there is a gradient", block));
    }
    hdf5::Array array = file.root().open_array(name(blocks[static_cast<size_t>(block)]));
    return values.emplace(block, std::move(array)).first->second;
  }
};

GradientLogReader::GradientLogReader(const fs::path& run, int64_t from) {
  for (const auto& [number, folder] : attempt_folders(run)) {
    Attempt attempt{.header = {}, .segments = {}};
    bool has_header = false;
    std::vector<LoggedSegment> segments = segment_files(folder);
    for (size_t i = 0; i < segments.size(); ++i) {
      LoggedSegment& segment = segments[i];
      const bool has_next = i + 1 < segments.size() && segments[i + 1].server == segment.server;
      if (has_next && segments[i + 1].first_step <= from) continue;
      try {
        const LogAttempt header = header_of(hdf5::File::open_appended(segment.file), number, segment);
        if (!has_header) attempt.header = header;
        has_header = true;
        attempt.segments.push_back(std::move(segment));
      } catch (const InputError& error) {
        problems_.emplace_back(error.what());
      }
    }
    if (has_header) attempts_.push_back(std::move(attempt));
  }
}

GradientLogReader::~GradientLogReader() = default;
GradientLogReader::GradientLogReader(GradientLogReader&&) noexcept = default;
GradientLogReader& GradientLogReader::operator=(GradientLogReader&&) noexcept = default;

const GradientLogReader::Attempt* GradientLogReader::attempt_of(int64_t step) const {
  for (auto attempt = attempts_.rbegin(); attempt != attempts_.rend(); ++attempt) {
    if (attempt->header.first_step <= step) return &*attempt;
  }
  return nullptr;
}

int64_t GradientLogReader::end_of(const Attempt& attempt) const {
  int64_t end = std::numeric_limits<int64_t>::max();
  for (const Attempt& other : attempts_) {
    if (other.header.number > attempt.header.number) end = std::min(end, other.header.first_step);
  }
  return end;
}

GradientLogReader::OpenSegment& GradientLogReader::open(const LoggedSegment& segment) {
  std::unique_ptr<OpenSegment>& opened = open_[segment.server];
  if (!opened || opened->path != segment.file) {
    opened.reset();
    opened = std::make_unique<OpenSegment>(
        OpenSegment{.path = segment.file, .file = hdf5::File::open_appended(segment.file)});
  }
  return *opened;
}

template <class Row>
const GradientLogReader::Rows<Row>& GradientLogReader::rows_in(const LoggedSegment& segment, const char* name) {
  constexpr int64_t kMostKeptBytes = int64_t{256} << 20;
  auto& files = std::get<RowsOfFiles<Row>>(rows_);
  if (const auto found = files.find(segment.file); found != files.end()) return found->second;
  if (kept_bytes_ > kMostKeptBytes) {
    rows_ = {};
    kept_bytes_ = 0;
  }
  Rows<Row> rows;
  try {
    const hdf5::Table table = open(segment).file.root().open_table(name, columns_of(static_cast<Row*>(nullptr)));
    rows.sound.resize(static_cast<size_t>(table.rows()));
    table.read(0, table.rows(), rows.sound.data());
    const auto damaged =
        std::ranges::find_if(rows.sound, [](const Row& row) { return row.row_checksum != checksum_of(row); });
    if (damaged != rows.sound.end()) {
      problems_.push_back(
          fmt::format("{}: /{}: row {} is damaged", segment.file.string(), name, damaged - rows.sound.begin()));
      rows.sound.erase(damaged, rows.sound.end());
      rows.are_all = false;
    }
  } catch (const InputError& error) {
    problems_.emplace_back(error.what());
    rows = {.sound = {}, .are_all = false};
  }
  kept_bytes_ += static_cast<int64_t>(rows.sound.size() * sizeof(Row));
  return files.emplace(segment.file, std::move(rows)).first->second;
}

template <class Row>
std::vector<Row> GradientLogReader::rows(const Attempt& attempt, int64_t server, int64_t first, int64_t end,
                                         const char* name) {
  std::vector<Row> result;
  for (size_t i = 0; i < attempt.segments.size(); ++i) {
    const LoggedSegment& segment = attempt.segments[i];
    if (segment.server != server || segment.first_step >= end) continue;
    const bool is_last = i + 1 == attempt.segments.size() || attempt.segments[i + 1].server != server;
    if (!is_last && attempt.segments[i + 1].first_step <= first) continue;
    const Rows<Row>& read = rows_in<Row>(segment, name);
    std::ranges::copy_if(read.sound, std::back_inserter(result),
                         [=](const Row& row) { return row.step >= first && row.step < end; });
    if (!read.are_all) break;
  }
  return result;
}

std::vector<LoggedUpdate> GradientLogReader::updates(const Attempt& attempt, int64_t server, int64_t first,
                                                     int64_t end) {
  return rows<LoggedUpdate>(attempt, server, first, end, kUpdateTable);
}

std::vector<LoggedVersion> GradientLogReader::versions(const Attempt& attempt, int64_t server, int64_t first,
                                                       int64_t end) {
  return rows<LoggedVersion>(attempt, server, first, end, kVersionTable);
}

std::vector<GradientLogReader::Push> GradientLogReader::pushes(const Attempt& attempt, int64_t server, int64_t first,
                                                               int64_t end) {
  std::vector<Push> result;
  for (const LoggedPush& row : rows<LoggedPush>(attempt, server, first, end, kPushTable)) {
    OpenSegment& segment = open(segment_of(attempt, server, row.step));
    if (!segment.units) {
      const hdf5::Array array = segment.file.root().open_array(kUnitArray);
      std::vector<int64_t> units(static_cast<size_t>(array.rows()));
      array.read(0, array.rows(), units.data());
      segment.units = std::move(units);
    }
    if (row.first_unit < 0 || row.units < 0 || row.first_unit + row.units > std::ssize(*segment.units)) {
      throw InputError(segment.path.string(), kUnitArray, fmt::format("lacks units of a push of step {}", row.step));
    }
    const auto units = segment.units->begin() + row.first_unit;
    result.push_back({.row = row, .units = {units, units + row.units}});
  }
  return result;
}

std::vector<GradientLogReader::Computation> GradientLogReader::computations(const Attempt& attempt, int64_t first,
                                                                            int64_t end) {
  std::vector<Computation> result;
  const LoggedSegment* segment = nullptr;
  std::vector<int64_t> versions;
  std::vector<int64_t> ranges;
  std::vector<int64_t> sequences;
  const auto part = [&](const std::vector<int64_t>& values, int64_t at, int64_t count) {
    if (at < 0 || count < 0 || at + count > std::ssize(values)) {
      throw InputError(segment->file.string(), std::string("/") + kComputationTable,
                       "points behind the end of its lists");
    }
    return std::vector<int64_t>(values.begin() + at, values.begin() + at + count);
  };
  try {
    for (const LoggedComputation& row : rows<LoggedComputation>(attempt, 0, first, end, kComputationTable)) {
      const LoggedSegment& of_row = segment_of(attempt, 0, row.step);
      if (segment != &of_row) {
        segment = &of_row;
        const hdf5::Group root = open(of_row).file.root();
        versions = root.read_vector<int64_t>(kVersionArray);
        ranges = root.read_vector<int64_t>(kRangeArray);
        sequences = root.read_vector<int64_t>(kSequenceArray);
      }
      Computation computation{.row = row,
                              .lists = {.versions = part(versions, row.first_version, row.versions),
                                        .bounds = part(ranges, row.first_bound, row.bounds),
                                        .sequences = {}}};
      const std::vector<int64_t> numbers =
          part(sequences, kSequenceNumbers * row.first_sequence, kSequenceNumbers * row.sequences);
      for (auto n = numbers.begin(); n != numbers.end(); n += kSequenceNumbers) {
        computation.lists.sequences.push_back({.document = n[0], .begin = n[1], .length = n[2], .earlier = n[3]});
      }
      if (checksum_of_lists(computation.lists) != row.lists_checksum) {
        throw InputError(segment->file.string(), std::string("/") + kComputationTable,
                         fmt::format("the lists of unit {} of step {} are damaged", row.unit, row.step));
      }
      result.push_back(std::move(computation));
    }
  } catch (const InputError& error) {
    problems_.emplace_back(error.what());
  }
  return result;
}

const LoggedSegment& GradientLogReader::segment_of(const Attempt& attempt, int64_t server, int64_t step) const {
  const LoggedSegment* found = nullptr;
  for (const LoggedSegment& segment : attempt.segments) {
    if (segment.server == server && segment.first_step <= step) found = &segment;
  }
  if (found == nullptr) {
    const fs::path folder = attempt.segments.empty() ? fs::path("log") : attempt.segments.front().file.parent_path();
    throw InputError(folder.string(), fmt::format("server {}", server), fmt::format("has no file of step {}", step));
  }
  return *found;
}

void GradientLogReader::read(const Attempt& attempt, int64_t server, const LoggedUpdate& update,
                             std::vector<float>& gradient) {
  const hdf5::Array& sums = open(segment_of(attempt, server, update.step)).values_of(update.block, sums_name);
  if (update.sums_row < 0 || sums.columns() != update.count) {
    throw InputError(sums.file(), sums.name(), fmt::format("does not hold the gradient of step {}", update.step));
  }
  gradient.resize(static_cast<size_t>(update.count));
  sums.read(update.sums_row, 1, gradient.data());
  check_values(sums.file(), fmt::format("{} row {}", sums.name(), update.sums_row), gradient, update.values_checksum);
}

void GradientLogReader::read(const Attempt& attempt, int64_t server, const LoggedPush& push,
                             std::vector<float>& values) {
  const hdf5::Array& array = open(segment_of(attempt, server, push.step)).values_of(push.block, push_values_name);
  values.resize(static_cast<size_t>(push.count));
  array.read(push.first_value, push.count, values.data());
  check_values(array.file(),
               fmt::format("{} rows {} to {}", array.name(), push.first_value, push.first_value + push.count - 1),
               values, push.values_checksum);
}

void clear_log_writers(const fs::path& run) {
  // A rank that was killed a moment ago may still be dying, with its locks.
  constexpr double kPatience_s = 2;
  constexpr std::chrono::milliseconds kPause(20);
  const double begin_s = now_s();
  for (const auto& [number, folder] : attempt_folders(run)) {
    for (const LoggedSegment& segment : segment_files(folder)) {
      std::error_code error;
      if (fs::file_size(segment.file, error) == 0 && !error) {  // the disk was full
        fs::remove(segment.file, error);
        continue;
      }
      try {
        hdf5::File::open(segment.file);
        continue;  // it was closed
      } catch (const InputError&) {
      }
      for (bool is_done = false; !is_done;) {
        try {
          hdf5::File::clear_writer(segment.file);
          is_done = true;
        } catch (const InputError& error) {
          is_done = now_s() - begin_s > kPatience_s;
          if (is_done) fmt::print(stderr, "hat: {}\n", error.what());
        }
        if (!is_done) std::this_thread::sleep_for(kPause);
      }
    }
  }
}

void prune_log(const fs::path& run, int64_t step) {
  const auto folders = attempt_folders(run);
  std::vector<int64_t> first_steps;  // of the attempts, as their files' names say
  for (const auto& [number, folder] : folders) {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const LoggedSegment& segment : segment_files(folder)) first = std::min(first, segment.first_step);
    first_steps.push_back(first);
  }
  for (size_t a = 0; a < folders.size(); ++a) {
    const bool is_superseded = std::any_of(first_steps.begin() + static_cast<std::ptrdiff_t>(a) + 1, first_steps.end(),
                                           [step](int64_t first) { return first <= step; });
    const std::vector<LoggedSegment> segments = segment_files(folders[a].second);
    for (size_t i = 0; i < segments.size(); ++i) {
      const bool has_next = i + 1 < segments.size() && segments[i + 1].server == segments[i].server;
      if (is_superseded || (has_next && segments[i + 1].first_step <= step)) fs::remove(segments[i].file);
    }
    if (is_superseded) fs::remove(folders[a].second);
  }
}

int64_t next_log_attempt(const fs::path& run) {
  int64_t newest = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "log", error)) {  // whatever has such a name is in the way
    newest = std::max(newest, number_in_name(entry.path().filename().string(), "attempt-", "").value_or(0));
  }
  return newest + 1;
}

}  // namespace hat
