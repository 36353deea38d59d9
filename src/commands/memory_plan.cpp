#include "commands/memory_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

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

/// Of the member that needs most: the first has most tokens, the last most keys and values of others.
int64_t gang_activations(const RunPlan& plan, const UnitSizes& sizes, Transformer& model) {
  const BlockFlop flop = sum(count_flop(plan.deck.model, plan.layout));
  const int64_t values = key_value_elements(plan.deck.model) / plan.deck.model.layers;
  int64_t most = 0;
  for (const int64_t members : {std::max<int64_t>(2, sizes.least_gang), plan.gang_workers()}) {
    const std::vector<double> speeds(static_cast<size_t>(members), 1.0);
    GangRange range{.bounds = equal_cost_bounds(sizes.longest, flop.per_square / flop.per_token, speeds)};
    for (const int64_t member : {int64_t{0}, range.members() - 1}) {
      range.member = member;
      // Copies that wait for receivers, at most of all layers; gradients that are awaited, of two layers; keys and
      // values that come in another format than they are kept in.
      const int64_t others = range.members() - 1 - member;
      const int64_t copies = (others > 0 ? plan.deck.model.layers : 0) + 2 * others;
      int64_t on_the_way = copies * range.tokens() * values * kFloat;
      if (plan.deck.gang.wire == WireFormat::bf16) {
        on_the_way += range.begin() * key_value_elements(plan.deck.model) * kFloat / 2;
      }
      most = std::max(most, model.buffer_bytes(range) + on_the_way);
    }
  }
  return most;
}

}  // namespace

WorkerMemory worker_memory(const RunPlan& plan, const UnitSizes& sizes, Recompute recompute) {
  ComputeOptions options = plan.compute;
  options.recompute = recompute;
  // Only sizes are asked for, also by ranks that have no such device.
  options.operations = &operations(options.device);
  options.device = DeviceKind::cpu;
  Transformer model(plan.deck.model, options);
  int64_t activations = model.buffer_bytes(sizes.tokens, std::min(sizes.tokens, sizes.longest));
  if (plan.forms_gangs() && sizes.longest > 1) {
    activations = std::max(activations, gang_activations(plan, sizes, model));
  }
  return {
      .parameters = copies_of_parameters(plan), .gradients = plan.layout.size() * kFloat, .activations = activations};
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
  const int64_t worker = worker_memory(plan, sizes, recompute).total();
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

MemoryChoice choose_by_memory(const RunPlan& plan, const UnitSizes& sizes, int64_t share) {
  const WorkerConfig& worker = plan.deck.worker;
  const double given = worker.memory_gib * static_cast<double>(int64_t{1} << 30);
  const bool is_given = given > 0 && given < static_cast<double>(share);
  const int64_t limit = is_given ? static_cast<int64_t>(given) : share;
  const auto level_for = [&](const RunPlan& run, const UnitSizes& units) {
    return first_that_fits(
        worker.recompute, [&](Recompute level) { return worker_memory(run, units, level).total(); }, limit);
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
    if (worker_memory(plan, units, thriftiest).total() > limit) continue;
    // The longest unit of one worker that fits beside.
    int64_t fits = unit;
    for (int64_t too_long = sizes.tokens; too_long - fits > 1;) {
      units.tokens = (fits + too_long) / 2;
      (worker_memory(plan, units, thriftiest).total() <= limit ? fits : too_long) = units.tokens;
    }
    units.tokens = fits;
    return {.recompute = thriftiest, .units = units};
  }
  const bool may_be_alone = plan.deck.gang.policy != SplitPolicy::always;
  const WorkerMemory least = worker_memory(may_be_alone ? alone : plan, sizes, thriftiest);
  throw KeyError(is_given ? "worker.memory_gib" : "model",
                 fmt::format("a worker needs {} of memory (parameters {}, gradients {}, activations of a unit of {} "
                             "tokens {} with worker.recompute = {}) and may use {}{}{}",
                             gib(least.total()), gib(least.parameters), gib(least.gradients), with_commas(sizes.tokens),
                             gib(least.activations), name_of(thriftiest), gib(limit, Rounding::down),
                             is_given ? "" : ", its share of what is available on its node",
                             most_workers > 1 ? ", and ranges of it for several workers do not fit either" : ""));
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
