#include "commands/memory_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "commands/compute_choice.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/gradient/node_slots.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/ledger/sequence_cut.hpp"
#include "hat/model/flop_count.hpp"
#include "hat/model/transformer.hpp"
#include "hat/optimizer/optimizer.hpp"

namespace hat {

namespace {

constexpr int64_t kFloat = sizeof(float);

/// Bytes of the copies of a worker, of slots kept together its share. The most of all workers (only a worker alone is
/// on a server's rank: plan_roles).
int64_t copies_of_parameters(const RunPlan& plan) {
  int64_t values = 0;
  for (size_t block = 0; block < plan.layout.blocks.size(); ++block) {
    if (plan.reads_in_place(static_cast<int64_t>(block), plan.roles.rank_of_worker.front())) continue;
    values += plan.layout.blocks[block].size;
  }
  const int64_t own = (plan.deck.prefetch_depth + 1) * values * kFloat;
  int64_t most = 0;
  for (int worker = 0; worker < plan.roles.workers(); ++worker) {
    const int64_t sharers = plan.pull_sharers(worker);
    most = std::max(most, sharers > 1 ? NodeSlots::bytes(plan) / sharers : own);
  }
  return most;
}

/// Deterministic: pushes of single units that may wait at once for their turn in one step's sum of a block, about.
int64_t waiting_pushes(const RunPlan& plan, int64_t block) {
  const bool in_ring = plan.is_barrier[static_cast<size_t>(block)] && plan.deck.barrier_path == BarrierPath::ring;
  if (!plan.deck.deterministic || in_ring) return 0;
  // All units of a step but the first; each worker's share of the step may end in a unit that is not full. Of gangs,
  // every range.
  const int64_t ranges =
      plan.forms_gangs() ? std::max<int64_t>(2, plan.deck.cutting.batch_sequences) * plan.gang_workers() : 0;
  return plan.deck.batch_tokens / std::max<int64_t>(1, plan.deck.unit_tokens) + plan.roles.workers() - 1 + ranges;
}

}  // namespace

UnitSizes unit_sizes(const Dataset& dataset, const RunPlan& plan) {
  int64_t longest = 1;
  for (const Split split : {Split::train, Split::validation}) {
    for (int64_t d = 0; d < dataset.documents(split); ++d) longest = std::max(longest, dataset.length(split, d));
  }
  longest = std::min(longest, plan.deck.model.max_length);
  return {.tokens = std::max(longest, plan.deck.unit_tokens), .longest = longest};
}

namespace {

/// Of a gang on the longest sequence, the ranges of those that need most: the first has most tokens, the last most keys
/// and values of others.
std::vector<GangRange> largest_ranges(const RunPlan& plan, const UnitSizes& sizes) {
  const BlockFlop flop = sum(count_flop(plan.deck.model, plan.layout));
  std::vector<GangRange> ranges;
  if (!plan.forms_gangs() || sizes.longest <= 1) return ranges;
  for (const int64_t members : {std::max<int64_t>(2, sizes.least_gang), plan.gang_workers()}) {
    const std::vector<double> speeds(static_cast<size_t>(members), 1.0);
    GangRange range{.bounds = equal_cost_bounds(sizes.longest, flop.per_square / flop.per_token, speeds)};
    for (const int64_t member : {int64_t{0}, range.members() - 1}) {
      range.member = member;
      ranges.push_back(range);
    }
  }
  return ranges;
}

/// Messages of a gang under way, in memory of the host.
int64_t gang_messages(const RunPlan& plan, const GangRange& range) {
  const int64_t values = key_value_elements(plan.deck.model) / plan.deck.model.layers;
  // Copies that wait for receivers, at most of all layers; gradients that are awaited, of two layers; keys and values
  // that come in another format than they are kept in.
  const int64_t others = range.members() - 1 - range.member;
  const int64_t copies = (others > 0 ? plan.deck.model.layers : 0) + 2 * others;
  int64_t bytes = copies * range.tokens() * values * kFloat;
  if (plan.deck.gang.wire == WireFormat::bf16) {
    bytes += range.begin() * key_value_elements(plan.deck.model) * kFloat / 2;
  }
  return bytes;
}

WorkerMemory memory_on_cpu(const RunPlan& plan, const UnitSizes& sizes, Transformer& model) {
  int64_t activations = model.buffer_bytes(sizes.tokens, std::min(sizes.tokens, sizes.longest));
  for (const GangRange& range : largest_ranges(plan, sizes)) {
    activations = std::max(activations, model.buffer_bytes(range) + gang_messages(plan, range));
  }
  return {
      .parameters = copies_of_parameters(plan), .gradients = plan.layout.size() * kFloat, .activations = activations};
}

WorkerMemory memory_on_device(const RunPlan& plan, const UnitSizes& sizes, Transformer& model) {
  constexpr int64_t kCopies = 2;  // DeviceParameters
  const int64_t values = plan.layout.size() * kFloat;
  const Transformer::ReservedBytes reserved = model.reserved_bytes(largest_batches(plan, sizes));
  int64_t messages = 0;
  for (const GangRange& range : largest_ranges(plan, sizes)) messages = std::max(messages, gang_messages(plan, range));
  WorkerMemory memory{.parameters = kCopies * values,
                      .gradients = values,
                      .activations = reserved.buffers,
                      .libraries = reserved.scratch,
                      .staging = copies_of_parameters(plan) + values + reserved.host + messages,
                      .on_device = true};
  if (plan.records_sketches()) {
    memory.gradients += std::ssize(plan.layout.blocks) * kSketchBuckets * kFloat;
  }
  memory.libraries += plan.nccl_bytes;
  return memory;
}

}  // namespace

std::vector<BatchSize> largest_batches(const RunPlan& plan, const UnitSizes& sizes) {
  std::vector<BatchSize> batches{{.tokens = sizes.tokens, .longest = std::min(sizes.tokens, sizes.longest)}};
  for (const GangRange& range : largest_ranges(plan, sizes)) batches.push_back(BatchSize::of(range));
  return batches;
}

WorkerMemory worker_memory(const RunPlan& plan, const UnitSizes& sizes, Recompute recompute) {
  ComputeOptions options = plan.compute;
  options.recompute = recompute;
  // Only sizes are asked for, also by ranks that have no such device.
  options.operations = &operations(options.device);
  Transformer model(plan.deck.model, options, Stream(Device{.threads = options.threads}));
  return options.device == DeviceKind::cpu ? memory_on_cpu(plan, sizes, model) : memory_on_device(plan, sizes, model);
}

ServerMemory server_memory(const RunPlan& plan, int server) {
  ServerMemory memory{.slots = plan.slots.window_bytes[static_cast<size_t>(server)]};
  int64_t largest = 0;
  for (const int64_t index : plan.shards.parts_of_server[static_cast<size_t>(server)]) {
    const Part& part = plan.shards.parts[static_cast<size_t>(index)];
    const bool predicted = plan.deck.delay.predict && plan.predicted_slots[static_cast<size_t>(index)].slots > 0;
    if (plan.deck.pull_format == PullFormat::bf16) memory.slots += part.count * kFloat * (predicted ? 2 : 1);
    // A step's sum is open while the next ones, up to S of them, have begun; unbounded, pushes wait their turn.
    const int64_t sums =
        plan.unbounded() ? plan.roles.workers() : (plan.deck.staleness + 1) * (1 + waiting_pushes(plan, part.block));
    memory.gradients += part.count * kFloat * sums;
    largest = std::max(largest, part.count * kFloat);
    memory.checkpoints += part.count * kFloat;
    for (const TensorPiece& piece : pieces_of(plan.layout, part)) {
      const TensorSpec& tensor =
          plan.layout.blocks[static_cast<size_t>(part.block)].tensors[static_cast<size_t>(piece.tensor)];
      const auto states = static_cast<int64_t>(state_names(plan.deck.optimizer.kind, tensor).size());
      const auto row_states = static_cast<int64_t>(row_state_names(plan.deck.optimizer, tensor).size());
      memory.optimizer += (states * piece.size() + row_states * piece.rows) * kFloat;
    }
  }
  memory.gradients += largest * plan.roles.workers();
  if (plan.deck.delay.compensation > 0) memory.gradients += 2 * largest;
  memory.checkpoints += memory.optimizer;
  return memory;
}

int64_t rank_of_worker_bytes(const RunPlan& plan, const UnitSizes& sizes, Recompute recompute) {
  const int64_t worker = worker_memory(plan, sizes, recompute).on_host();
  const auto rank = static_cast<size_t>(plan.roles.rank_of_worker.front());
  return plan.roles.role_of_rank[rank] == Role::both ? worker + server_memory(plan, 0).total() : worker;
}

int64_t worker_share(const RunPlan& plan, const std::vector<int>& node_of_rank, int node, int64_t available) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  if (available == 0) return kNoLimit;
  const auto here = [&](int rank) { return node_of_rank[static_cast<size_t>(rank)] == node; };
  int64_t servers = 0;
  for (int server = 0; server < plan.roles.servers(); ++server) {
    if (here(plan.roles.rank_of_server[static_cast<size_t>(server)])) servers += server_memory(plan, server).total();
  }
  if (servers > available) {
    throw KeyError("model",
                   fmt::format("the servers of one node need {} of memory, and it has {} available: more servers on "
                               "more nodes share the model out",
                               gib(servers), gib(available, Rounding::down)));
  }
  const auto workers = std::count_if(plan.roles.rank_of_worker.begin(), plan.roles.rank_of_worker.end(), here);
  return workers == 0 ? kNoLimit : (available - servers) / workers;
}

MemoryChoice choose_by_memory(const RunPlan& plan, const UnitSizes& sizes, int64_t share, int64_t device_share) {
  const WorkerConfig& worker = plan.deck.worker;
  const bool on_device = plan.compute.device != DeviceKind::cpu;
  const double given = worker.memory_gib * static_cast<double>(int64_t{1} << 30);
  const int64_t available = on_device ? device_share : share;
  const bool is_given = given > 0 && given < static_cast<double>(available);
  const int64_t limit = is_given ? static_cast<int64_t>(given) : available;
  const auto fits = [&](const WorkerMemory& memory) {
    return memory.total() <= limit && (!on_device || memory.on_host() <= share);
  };
  const auto level_for = [&](const RunPlan& run, const UnitSizes& units) -> std::optional<Recompute> {
    for (const Recompute level : levels_of(worker.recompute)) {
      if (fits(worker_memory(run, units, level))) return level;
    }
    return std::nullopt;
  };
  if (const auto level = level_for(plan, sizes)) return {.recompute = *level, .units = sizes};
  RunPlan alone = plan;
  alone.deck.gang.policy = SplitPolicy::never;
  if (plan.deck.gang.policy == SplitPolicy::automatic && plan.forms_gangs()) {
    if (const auto level = level_for(alone, sizes)) return {.recompute = *level, .units = sizes, .gangs = false};
  }
  const Recompute thriftiest = levels_of(worker.recompute).back();
  const int64_t most_workers = plan.forms_gangs() ? plan.gang_workers() : 1;
  for (int64_t members = 2; members <= most_workers; ++members) {
    const int64_t unit = plan.deck.unit_tokens;
    UnitSizes units{.tokens = unit, .longest = sizes.longest, .least_gang = members};
    if (!fits(worker_memory(plan, units, thriftiest))) continue;
    // The longest unit of one worker that fits beside.
    int64_t fitting = unit;
    for (int64_t too_long = sizes.tokens; too_long - fitting > 1;) {
      units.tokens = (fitting + too_long) / 2;
      (fits(worker_memory(plan, units, thriftiest)) ? fitting : too_long) = units.tokens;
    }
    units.tokens = fitting;
    return {.recompute = thriftiest, .units = units};
  }
  const bool may_be_alone = plan.deck.gang.policy != SplitPolicy::always;
  const WorkerMemory least = worker_memory(may_be_alone ? alone : plan, sizes, thriftiest);
  const char* not_split = most_workers > 1 ? ", and ranges of it for several workers do not fit either" : "";
  if (least.total() <= limit) {
    throw KeyError("model", fmt::format("a worker needs {} of memory of its host, for what comes to its CUDA device "
                                        "and leaves it, and may use {}, its share of what is available on its node{}",
                                        gib(least.on_host()), gib(share, Rounding::down), not_split));
  }
  throw KeyError(
      is_given ? "worker.memory_gib" : "model",
      fmt::format("a worker needs {} of memory{} (parameters {}, gradients {}, activations of a unit of {} "
                  "tokens {} with worker.recompute = {}{}) and may use {}{}{}",
                  gib(least.total()), on_device ? " of its CUDA device" : "", gib(least.parameters),
                  gib(least.gradients), with_commas(sizes.tokens), gib(least.activations), name_of(thriftiest),
                  on_device ? ", libraries " + gib(least.libraries) : "", gib(limit, Rounding::down),
                  is_given    ? ""
                  : on_device ? ", its share of what is free there"
                              : ", its share of what is available on its node",
                  not_split));
}

std::string gib(int64_t bytes, Rounding rounding) {
  constexpr double kDigits = 3;
  const double value = static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30);
  if (bytes <= 0) return "0 GiB";
  const double last_digit = std::pow(10.0, std::floor(std::log10(value)) + 1 - kDigits);
  const double digits = value / last_digit;
  return fmt::format("{:.3g} GiB", last_digit * (rounding == Rounding::up ? std::ceil(digits) : std::floor(digits)));
}

}  // namespace hat
