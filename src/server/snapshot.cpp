#include "server/snapshot.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "hat/core/clock.hpp"
#include "hat/core/fault.hpp"

namespace hat {

Snapshot::Snapshot(const RunPlan& plan, int server)
    : plan_(plan),
      server_(server),
      parts_(static_cast<int64_t>(plan.shards.parts_of_server[static_cast<size_t>(server)].size())) {}

void Snapshot::part_at_step(Shard& shard, int64_t part, int64_t steps) {
  if (steps != also_ && !checkpoint_due(plan_, steps)) return;
  Copy& copy = copies_[steps];
  const double begin_s = now_s();
  for (TensorSlice slice : shard.slices(part)) {
    copy.values.emplace_back(slice.data, slice.data + slice.rows * slice.columns);
    slice.data = copy.values.back().data();
    copy.slices.push_back(slice);
  }
  copy.message.longest_copy_s = std::max(copy.message.longest_copy_s, now_s() - begin_s);
  copy.message.server = server_;
  copy.message.step = steps;
  copy.message.blocks.push_back(shard.block(part));
  copy.message.versions.push_back(shard.version(part));
  if (static_cast<int64_t>(copy.message.blocks.size()) < parts_) return;
  auto whole = std::make_shared<Copy>(std::move(copy));
  copies_.erase(steps);
  writing_.push_back(thread_.submit([run = std::filesystem::path(plan_.deck.output), whole] {
    fault_point(FaultPoint::checkpoint);
    const CheckpointWritten& message = whole->message;
    write_server_file(checkpoint_folder(run, message.step), message.server, message.step, whole->slices);
    return message;
  }));
}

std::vector<CheckpointWritten> Snapshot::take_written() {
  std::vector<CheckpointWritten> written;
  std::erase_if(writing_, [&written](std::future<CheckpointWritten>& file) {
    if (!is_ready(file)) return false;
    written.push_back(file.get());
    return true;
  });
  return written;
}

}  // namespace hat
