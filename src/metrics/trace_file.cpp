#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "hat/core/error.hpp"
#include "hat/io/durable.hpp"
#include "hat/metrics/trace.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

constexpr double kMicroseconds = 1e6;
constexpr int kFirstWorkerProcess = 100'000;  // servers are numbered from 0, workers from here

constexpr std::array<const char*, 10> kKindNames{"activity", "forward",  "backward", "pull",   "push",
                                                 "ring",     "exchange", "adding",   "update", "publish"};
const char* name_of(TraceKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

/// Threads of a process in the trace: of a worker its activity and the blocks of its passes, of a server its updates
/// and what it adds between their pieces.
enum class Track : int { first, second };

Track track_of(TraceKind kind) {
  const bool second = kind == TraceKind::forward || kind == TraceKind::backward || kind == TraceKind::adding;
  return second ? Track::second : Track::first;
}

bool is_asynchronous(TraceKind kind) {
  return kind == TraceKind::pull || kind == TraceKind::push || kind == TraceKind::ring || kind == TraceKind::exchange;
}

int process_of(const RoleTrace& trace) {
  return trace.role == TraceRecorder::Role::server ? trace.number : kFirstWorkerProcess + trace.number;
}

/// Where an arrow begins or ends: inside a span of this process and thread.
struct Place {
  int process;
  Track track;
  double time_s;
};

}  // namespace

struct TraceFile::Impl {
  explicit Impl(const fs::path& path) : draft(path) {}

  void check() const {
    if (!file) throw Error(fmt::format("{}: cannot be written: {}", draft.path().string(), std::strerror(errno)));
  }
  void metadata(int process, const char* what, Track track, const nlohmann::json& arguments) {
    write(fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{}}})", what, process, static_cast<int>(track),
                      arguments.dump()));
  }
  void name_process(const RoleTrace& trace);
  void span(int process, const TraceEvent& event);
  void remember_ends(int process, const TraceEvent& event);
  void arrows();
  void arrow(const char* name, const Place& from, const Place& to);
  void write(const std::string& object) {
    file << (events == 0 ? "[\n" : ",\n") << object;
    ++events;
  }
  double microseconds(double time_s) const { return (time_s - start_s) * kMicroseconds; }
  std::string block_name(int32_t block) const { return block < 0 ? "" : blocks.at(static_cast<size_t>(block)); }
  std::string arguments(const TraceEvent& event) const;

  Draft draft;
  std::vector<std::string> blocks;
  double start_s = 0;
  std::ofstream file;
  int64_t events = 0;
  int64_t next_id = 1;  // of asynchronous spans and arrows

  // What arrows are made of. A unit is -1 where updates are of whole steps.
  using PushKey = std::tuple<int32_t, int64_t, int64_t>;  // part, step, unit
  std::vector<std::pair<PushKey, Place>> pushes;
  std::map<PushKey, Place> updates;
  std::map<std::pair<int32_t, int64_t>, std::vector<Place>> published;  // block, version: one for each part
  std::map<std::tuple<int, int32_t, int64_t>, Place> uses;              // process, block, version: the first one
};

TraceFile::TraceFile(const fs::path& path, std::vector<std::string> block_names, double start_s)
    : impl_(std::make_unique<Impl>(path)) {
  impl_->blocks = std::move(block_names);
  impl_->start_s = start_s;
  impl_->file.open(impl_->draft.path(), std::ios::trunc);
  impl_->check();
}
TraceFile::~TraceFile() = default;

int64_t TraceFile::events() const { return impl_->events; }

void TraceFile::Impl::name_process(const RoleTrace& trace) {
  const bool server = trace.role == TraceRecorder::Role::server;
  const int process = process_of(trace);
  const std::string name = fmt::format("{} {}", server ? "server" : "worker", trace.number);
  metadata(process, "process_name", Track::first, {{"name", name}});
  metadata(process, "process_sort_index", Track::first, {{"sort_index", process}});
  metadata(process, "thread_name", Track::first, {{"name", server ? "updates" : "activity"}});
  metadata(process, "thread_name", Track::second, {{"name", server ? "adding" : "blocks"}});
  if (trace.dropped > 0) metadata(process, "process_labels", Track::first, {{"labels", "incomplete"}});
}

std::string TraceFile::Impl::arguments(const TraceEvent& event) const {
  nlohmann::json arguments = nlohmann::json::object();
  const auto put = [&](const char* key, int64_t value) {
    if (value >= 0) arguments[key] = value;
  };
  put("step", event.step);
  put("unit", event.unit);
  put("version", event.version);
  put("part", event.part);
  if (event.block >= 0) arguments["block"] = block_name(event.block);
  return arguments.dump();
}

void TraceFile::Impl::span(int process, const TraceEvent& event) {
  const char* kind = name_of(event.kind);
  const std::string name = event.kind == TraceKind::activity ? kActivityNames[static_cast<size_t>(event.activity)]
                                                             : fmt::format("{} {}", kind, block_name(event.block));
  const auto head = [&](const char* phase, double time_s) {
    return fmt::format(R"({{"ph":"{}","cat":"{}","name":"{}","pid":{},"tid":{},"ts":{:.3f})", phase, kind, name,
                       process, static_cast<int>(track_of(event.kind)), microseconds(time_s));
  };
  if (!is_asynchronous(event.kind)) {
    write(head("X", event.begin_s) +
          fmt::format(R"(,"dur":{:.3f},"args":{}}})", (event.end_s - event.begin_s) * kMicroseconds, arguments(event)));
    return;
  }
  const int64_t id = next_id++;
  write(head("b", event.begin_s) + fmt::format(R"(,"id":{},"args":{}}})", id, arguments(event)));
  write(head("e", event.end_s) + fmt::format(R"(,"id":{}}})", id));
}

void TraceFile::Impl::remember_ends(int process, const TraceEvent& event) {
  const Place begin{.process = process, .track = track_of(event.kind), .time_s = event.begin_s};
  switch (event.kind) {
    case TraceKind::push:
      pushes.push_back({{event.part, event.step, event.unit}, begin});
      break;
    case TraceKind::update:
      updates.try_emplace({event.part, event.step, event.unit}, begin);
      break;
    case TraceKind::publish:
      published[{event.block, event.version}].push_back(begin);
      break;
    case TraceKind::forward: {
      const auto [use, first] = uses.try_emplace({process, event.block, event.version}, begin);
      if (!first && begin.time_s < use->second.time_s) use->second = begin;
      break;
    }
    default:
      break;
  }
}

void TraceFile::Impl::arrow(const char* name, const Place& from, const Place& to) {
  const int64_t id = next_id++;
  const auto end = [&](const char* phase, const Place& place) {
    write(fmt::format(R"({{"ph":"{}","bp":"e","cat":"flow","name":"{}","id":{},"pid":{},"tid":{},"ts":{:.3f}}})", phase,
                      name, id, place.process, static_cast<int>(place.track), microseconds(place.time_s)));
  };
  end("s", from);
  end("f", to);
}

void TraceFile::Impl::arrows() {
  for (const auto& [key, place] : pushes) {
    auto update = updates.find(key);
    if (update == updates.end()) update = updates.find({std::get<0>(key), std::get<1>(key), -1});
    if (update != updates.end()) arrow("push", place, update->second);
  }
  for (const auto& [key, place] : uses) {
    const auto origin = published.find({std::get<1>(key), std::get<2>(key)});
    if (origin == published.end()) continue;  // start values, or published before the trace
    for (const Place& part : origin->second) arrow("pull", part, place);
  }
}

void TraceFile::add(const RoleTrace& trace) {
  const int process = process_of(trace);
  impl_->name_process(trace);
  for (const TraceEvent& event : trace.events) {
    impl_->span(process, event);
    impl_->remember_ends(process, event);
    impl_->check();
  }
}

void TraceFile::close() {
  impl_->arrows();
  impl_->file << (impl_->events == 0 ? "[" : "") << "\n]\n";
  impl_->file.close();
  impl_->check();
  fsync_file(impl_->draft.path());
  impl_->draft.rename();
}

}  // namespace hat
