#pragma once
#include <cstdint>
#include <future>
#include <map>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/comm/messages.hpp"
#include "hat/core/background_thread.hpp"
#include "server/shard.hpp"

namespace hat {

/// Writes this server's file of each checkpoint. A part is copied at the moment it has the checkpoint's values, so the
/// copy is consistent while training goes on; a thread of its own writes the copies.
class Snapshot {
 public:
  Snapshot(const RunPlan& plan, int server);

  /// A checkpoint is due after `steps` steps as well.
  void also_at(int64_t steps) { also_ = steps; }
  /// `part` of `shard` has its values after `steps` steps. Copies them if a checkpoint is due then.
  void part_at_step(Shard& shard, int64_t part, int64_t steps);

  /// Files that became durable since the last call. Throws what the writing ended with.
  std::vector<CheckpointWritten> take_written();

  /// Waits for what is being written, after which this object writes nothing more.
  void finish() { thread_.finish(); }

  /// A file is being written, which may take longer than anything else.
  bool is_writing() const { return !writing_.empty(); }
  /// A disk that is slower than the checkpoints come holds training up: no updates meanwhile, or copies would pile up
  /// in memory.
  bool holds_updates() const { return is_writing() && !copies_.empty(); }

 private:
  struct Copy {
    CheckpointWritten message;
    std::vector<TensorSlice> slices;  // point into `values`
    std::vector<std::vector<float>> values;
  };
  const RunPlan& plan_;
  int server_;
  int64_t parts_;                   // of this server
  int64_t also_ = -1;               // where a run stops early
  std::map<int64_t, Copy> copies_;  // by steps, not all parts there yet
  std::vector<std::future<CheckpointWritten>> writing_;
  BackgroundThread thread_;
};

}  // namespace hat
