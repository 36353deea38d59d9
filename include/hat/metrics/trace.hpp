#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/metrics/account.hpp"

namespace hat {

enum class TraceKind : int32_t {
  activity,  ///< of a worker: what its time is charged to
  forward,   ///< of a worker: a block's part of a pass, from its first use to that of the next
  backward,
  pull,      ///< of a worker, beside what it computes: a block on its way from the servers
  push,      ///< the same, to one part of a server
  ring,      ///< the same, a ring all-reduce
  exchange,  ///< the same, keys and values of a gang's layer, or their gradients, on their way to other workers
  adding,    ///< of a server: a push is added to its sum
  update,    ///< of a server: the optimizer's work on one part; other work of the server may lie between its pieces
  publish,   ///< of a server: the new version is made visible
};

/// Something that a role did, on its own clock (now_s). Numbers below zero: does not apply.
struct TraceEvent {
  TraceKind kind = TraceKind::activity;
  Activity activity = Activity::other;
  double begin_s = 0;
  double end_s = 0;
  int64_t step = -1;
  int64_t unit = -1;
  int64_t version = -1;
  int32_t block = -1;
  int32_t part = -1;  ///< of push, adding, update and publish; of an exchange: the worker's place in its gang
};

/// What one role records, in memory. Events of steps from `end_step` on are passed over; behind kMostEvents events
/// further ones are counted only.
class TraceRecorder {
 public:
  static constexpr int64_t kMostEvents = 400'000;  // 26 MB
  /// Stretches of a worker's time below this are put to the one before: a poll is no event.
  static constexpr double kShortest_s = 1e-6;

  enum class Role : int32_t { server, worker };
  TraceRecorder(Role role, int number, int64_t end_step) : role_(role), number_(number), end_step_(end_step) {}

  void add(const TraceEvent& event);
  /// A stretch of the worker's time, following the one before without a gap.
  void add_activity(const TraceEvent& event);

  Role role() const { return role_; }
  int number() const { return number_; }
  const std::deque<TraceEvent>& events() const { return events_; }
  int64_t dropped() const { return dropped_; }

 private:
  Role role_;
  int number_;
  int64_t end_step_;
  std::deque<TraceEvent> events_;
  int64_t last_activity_ = -1;  // place of the last activity in `events_`
  int64_t dropped_ = 0;
};

/// What this rank's clock must be moved by to show the root's. Zero on the node of the root, where all processes read
/// the same clock; from other nodes the quickest of a few round trips tells, to about half its duration. Collective.
/// Throws Error when a rank has to be waited for longer than `timeout_s`.
double clock_offset_s(const Communicator& communicator, int root, const std::vector<int>& node_of_rank,
                      double timeout_s, const std::function<double()>& clock);

/// Events of one role, moved to the root's clock.
struct RoleTrace {
  TraceRecorder::Role role = TraceRecorder::Role::server;
  int number = 0;
  int64_t dropped = 0;
  std::vector<TraceEvent> events;
};

/// The recorders of all ranks, each handed to `take` on the root, one after the other. Collective. Throws Error when a
/// rank has to be waited for longer than `timeout_s`.
void gather_traces(const Communicator& communicator, int root, std::span<const TraceRecorder* const> own,
                   double offset_s, double timeout_s, const std::function<void(const RoleTrace&)>& take);

/// RUN/trace.json: a JSON array in Chrome's trace-event format, for chrome://tracing and Perfetto. A process for each
/// role ("server 0", "worker 1"). Of a worker the thread "activity" covers its time without gaps and overlaps, and the
/// thread "blocks" shows the passes; pulls, pushes, rings and exchanges are asynchronous spans beside them. Arrows
/// (flows) go from a push to the update it went into, and from the publishing of a version to the first forward pass of
/// each worker that used it ("pull"); every arrow has both ends.
class TraceFile {
 public:
  /// Times are counted from `start_s` on the root's clock. Throws Error when the file cannot be written.
  TraceFile(const std::filesystem::path& path, std::vector<std::string> block_names, double start_s);
  ~TraceFile();

  void add(const RoleTrace& trace);
  /// Adds the arrows, ends the array and puts the file in its place.
  void close();
  int64_t events() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
