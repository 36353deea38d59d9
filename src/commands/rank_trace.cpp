#include "commands/rank_trace.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

#include "hat/core/text.hpp"

namespace hat {

RankTrace::RankTrace(const RunPlan& plan, const Communicator& world, const std::vector<int>& node_of_rank, int server,
                     int worker)
    : plan_(plan), world_(world), root_(plan.roles.rank_of_server[0]) {
  const TraceConfig& config = plan_.deck.trace;
  if (!config.enabled) return;
  const int64_t end_step = config.steps > 0 ? plan_.first_step + config.steps : std::numeric_limits<int64_t>::max();
  if (server >= 0) server_ = std::make_unique<TraceRecorder>(TraceRecorder::Role::server, server, end_step);
  if (worker >= 0) worker_ = std::make_unique<TraceRecorder>(TraceRecorder::Role::worker, worker, end_step);
  start_s_ = now_s();
  offset_s_ = clock_offset_s(world_, root_, node_of_rank, plan_.deck.timeout_s, now_s);
}

void RankTrace::write() const {
  if (!plan_.deck.trace.enabled) return;
  std::vector<const TraceRecorder*> own;
  for (const auto* recorder : {&server_, &worker_}) {
    if (*recorder) own.push_back(recorder->get());
  }
  if (world_.rank() != root_) {
    gather_traces(world_, root_, own, offset_s_, plan_.deck.timeout_s, {});
    return;
  }
  std::vector<std::string> blocks;
  for (const BlockSpec& block : plan_.layout.blocks) blocks.push_back(block.name);
  const std::filesystem::path path = std::filesystem::path(plan_.deck.output) / "trace.json";
  TraceFile file(path, blocks, start_s_);
  gather_traces(world_, root_, own, offset_s_, plan_.deck.timeout_s, [&](const RoleTrace& trace) {
    file.add(trace);
    if (trace.dropped == 0) return;
    fmt::print("trace: {} {} made {} events too many; only its first {} are recorded (trace.steps shortens a trace)\n",
               trace.role == TraceRecorder::Role::server ? "server" : "worker", trace.number,
               with_commas(trace.dropped), with_commas(TraceRecorder::kMostEvents));
  });
  file.close();
  fmt::print("trace: {} (open it in chrome://tracing or https://ui.perfetto.dev)\n", path.string());
}

}  // namespace hat
