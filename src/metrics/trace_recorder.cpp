#include "hat/comm/backoff.hpp"
#include "hat/core/error.hpp"
#include "hat/metrics/trace.hpp"

namespace hat {

namespace {
constexpr int kClockTag = 101;
constexpr int kTraceTag = 102;

/// What goes before the events of one recorder.
struct TraceHeader {
  int32_t more = 0;  // 0: this rank has no further recorder
  TraceRecorder::Role role = TraceRecorder::Role::server;
  int64_t number = 0;
  int64_t dropped = 0;
  int64_t events = 0;
};

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void finish(Request request, double timeout_s, const std::string& what) {
  const double start_s = now_s();
  Backoff backoff;
  while (!request.test()) {
    if (now_s() - start_s > timeout_s) throw Error(fmt::format("waited {:.0f} s for {}", timeout_s, what));
    backoff.pause();
  }
}

RoleTrace trace_of(const TraceRecorder& recorder, double offset_s) {
  RoleTrace trace{.role = recorder.role(),
                  .number = recorder.number(),
                  .dropped = recorder.dropped(),
                  .events = {recorder.events().begin(), recorder.events().end()}};
  for (TraceEvent& event : trace.events) {
    event.begin_s += offset_s;
    event.end_s += offset_s;
  }
  return trace;
}

void send_traces(const Communicator& communicator, int root, std::span<const TraceRecorder* const> own, double offset_s,
                 double timeout_s) {
  const std::string what = "the trace to leave";
  for (const TraceRecorder* recorder : own) {
    const RoleTrace trace = trace_of(*recorder, offset_s);
    TraceHeader header{.more = 1,
                       .role = trace.role,
                       .number = trace.number,
                       .dropped = trace.dropped,
                       .events = static_cast<int64_t>(trace.events.size())};
    finish(communicator.start_send(bytes_of(header), root, kTraceTag), timeout_s, what);
    finish(communicator.start_send(std::as_bytes(std::span(trace.events)), root, kTraceTag), timeout_s, what);
  }
  TraceHeader end;
  finish(communicator.start_send(bytes_of(end), root, kTraceTag), timeout_s, what);
}

void receive_traces(const Communicator& communicator, int source, double timeout_s,
                    const std::function<void(const RoleTrace&)>& take) {
  const std::string what = fmt::format("the trace of rank {}", source);
  struct Buffers {
    TraceHeader header;
    RoleTrace trace;
  };
  auto buffers = std::make_unique<Buffers>();
  auto& [header, trace] = *buffers;
  try {
    while (true) {
      finish(communicator.start_receive(bytes_of(header), source, kTraceTag), timeout_s, what);
      if (header.more == 0) return;
      trace = {.role = header.role,
               .number = static_cast<int>(header.number),
               .dropped = header.dropped,
               .events = std::vector<TraceEvent>(static_cast<size_t>(header.events))};
      finish(communicator.start_receive(std::as_writable_bytes(std::span(trace.events)), source, kTraceTag), timeout_s,
             what);
      take(trace);
    }
  } catch (...) {
    (void)buffers.release();  // survivors of a lost rank go on, and what is late may still arrive there
    throw;
  }
}
}  // namespace

void TraceRecorder::add(const TraceEvent& event) {
  if (event.step >= end_step_) return;
  if (static_cast<int64_t>(events_.size()) >= kMostEvents) {
    ++dropped_;
    return;
  }
  events_.push_back(event);
}

void TraceRecorder::add_activity(const TraceEvent& event) {
  if (event.step >= end_step_) return;
  if (last_activity_ >= 0) {
    TraceEvent& last = events_[static_cast<size_t>(last_activity_)];
    const bool same = last.activity == event.activity && last.step == event.step && last.unit == event.unit;
    if (last.end_s == event.begin_s && (same || event.end_s - event.begin_s < kShortest_s)) {
      last.end_s = event.end_s;
      return;
    }
  }
  const auto place = static_cast<int64_t>(events_.size());
  add(event);
  if (static_cast<int64_t>(events_.size()) > place) last_activity_ = place;
}

double clock_offset_s(const Communicator& communicator, int root, const std::vector<int>& node_of_rank,
                      double timeout_s, const std::function<double()>& clock) {
  constexpr int kRounds = 16;
  const auto node = [&](int rank) { return node_of_rank[static_cast<size_t>(rank)]; };
  const std::string of_root = fmt::format("the clock of rank {}", root);
  double offset = 0;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (node(rank) == node(root)) continue;
    const std::string of_rank = fmt::format("the clock of rank {}", rank);
    double quickest = 0;
    for (int round = 0; round < kRounds; ++round) {
      double roots = 0;
      if (communicator.rank() == root) {
        finish(communicator.start_receive(bytes_of(roots), rank, kClockTag), timeout_s, of_rank);
        roots = clock();
        finish(communicator.start_send(bytes_of(roots), rank, kClockTag), timeout_s, of_rank);
      } else if (communicator.rank() == rank) {
        const double sent = clock();
        // The root may have to wait that long for each of the ranks before this one.
        finish(communicator.start_send(bytes_of(roots), root, kClockTag), timeout_s * communicator.size(), of_root);
        finish(communicator.start_receive(bytes_of(roots), root, kClockTag), timeout_s * communicator.size(), of_root);
        const double back = clock();
        if (round > 0 && back - sent >= quickest) continue;
        quickest = back - sent;
        offset = roots - (sent + back) / 2;
      }
    }
  }
  return offset;
}

void gather_traces(const Communicator& communicator, int root, std::span<const TraceRecorder* const> own,
                   double offset_s, double timeout_s, const std::function<void(const RoleTrace&)>& take) {
  if (communicator.rank() != root) {
    // The ranks before this one may each be waited for that long.
    send_traces(communicator, root, own, offset_s, timeout_s * communicator.size());
    return;
  }
  for (const TraceRecorder* recorder : own) take(trace_of(*recorder, offset_s));
  for (int source = 0; source < communicator.size(); ++source) {
    if (source != root) receive_traces(communicator, source, timeout_s, take);
  }
}

}  // namespace hat
