#include "hat/gradient/run_plan.hpp"

#include <algorithm>
#include <utility>

#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/gradient/shard_size.hpp"
#include "hat/model/charged_cost.hpp"

namespace hat {

namespace {

// Without a bound on staleness nothing tells how long a version is needed: pullers that meet an overwritten slot try
// again, and a few more slots make that rare.
constexpr int64_t kUnboundedSlots = 4;

// A unit is long enough to keep matrix products busy and short enough that the workers end a step together.
int64_t default_unit_tokens(const Deck& deck, int workers) {
  return std::max<int64_t>(512, deck.batch_tokens / (4 * static_cast<int64_t>(workers)));
}

int64_t noise_block(const ModelLayout& layout, const std::string& name) {
  if (name.empty()) return -1;
  std::vector<std::string> names;
  for (const BlockSpec& block : layout.blocks) names.push_back(block.name);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const std::string guess = closest_match(name, names);
    throw KeyError("sensitivity.noise_block",
                   fmt::format("'{}' is no block of this model{}", name,
                               guess.empty() ? "" : fmt::format("; did you mean '{}'?", guess)));
  }
  return found - names.begin();
}

}  // namespace

bool RunPlan::barriers_change() const {
  return std::find(deck.barriers.begin(), deck.barriers.end(), "sensitivity") != deck.barriers.end();
}

bool RunPlan::reads_in_place(int64_t block, int world_rank) const {
  const std::vector<int64_t>& parts = shards.parts_of_block[static_cast<size_t>(block)];
  return !unbounded() && deck.pull_format == PullFormat::fp32 && parts.size() == 1 &&
         slots.parts[static_cast<size_t>(parts.front())].server_rank == world_rank;
}

int64_t RunPlan::oldest_version(int64_t block, int64_t step) const {
  if (unbounded()) return 0;
  if (is_barrier[static_cast<size_t>(block)]) return step;
  return std::max(first_step, oldest_late_version(step, deck.staleness, deck.delay.sync_steps));
}

int64_t RunPlan::pull_sharers(int worker) const {
  if (pull_group.empty()) return 1;
  return std::count(pull_group.begin(), pull_group.end(), pull_group[static_cast<size_t>(worker)]);
}

void group_workers(RunPlan& plan, const std::vector<int>& node_of_rank) {
  std::vector<std::pair<int, int64_t>> nodes;
  for (const int rank : plan.roles.rank_of_worker) {
    const EmulatedNetworkConfig& network = plan.deck.emulation.network;
    const int64_t emulated = network.on() ? rank / network.ranks_per_node : 0;
    const std::pair<int, int64_t> node(node_of_rank[static_cast<size_t>(rank)], emulated);
    const auto found = std::find(nodes.begin(), nodes.end(), node);
    plan.node_of_worker.push_back(static_cast<int>(found - nodes.begin()));
    if (found == nodes.end()) nodes.push_back(node);
  }
  // Under the rule freshest a version is chosen by each worker when it looks; unbounded, nothing tells when a slot of
  // the node may be used again.
  if (!plan.deck.pull_share || plan.unbounded() || plan.deck.staleness_rule != StalenessRule::exact) return;
  if (nodes.size() < plan.node_of_worker.size()) plan.pull_group = plan.node_of_worker;  // or nobody has company
}

GangWire gang_wire(const RunPlan& plan) {
  const Element wire = plan.deck.gang.wire == WireFormat::bf16 ? Element::bf16 : Element::fp32;
  return {.forward = plan.compute.arithmetic == Element::bf16 ? Element::bf16 : wire, .backward = wire};
}

double exchange_charge(const RunPlan& plan) {
  const ChargedCost charged(plan.deck);
  return charged.exchange_bytes_per_byte() / charged.bytes_per_byte();
}

bool checkpoint_due(const RunPlan& plan, int64_t steps) {
  const int64_t every = plan.deck.checkpoint.every;
  return steps == plan.end_step || (every > 0 && steps % every == 0);
}

RunPlan make_run_plan(const Deck& deck, const RolePlan& roles) {
  RunPlan plan;
  plan.deck = deck;
  plan.piece_tokens = piece_tokens(deck);
  plan.roles = roles;
  plan.layout = make_layout(deck.model);
  plan.shards = plan_shards(plan.layout, roles.servers(), deck.optimizer.kind);
  for (size_t server = 0; server < plan.shards.parts_of_server.size(); ++server) {
    if (plan.shards.parts_of_server[server].empty()) {
      throw KeyError("servers",
                     fmt::format("{} are too many for this model: server {} would own nothing (under Muon hidden "
                                 "matrices stay whole)",
                                 counted(roles.servers(), "server"), server),
                     {"optimizer", "model.layers"});
    }
  }
  plan.slot_count = plan.unbounded() ? kUnboundedSlots : deck.staleness + 2;
  plan.slots = make_slot_table(plan.shards, roles, plan.slot_count, deck.pull_format);
  // What is left to choose, precision and recomputation, is measured and estimated at the start of a run.
  plan.compute = {.threads = static_cast<int>(deck.worker.threads),
                  .arithmetic = deck.precision == Precision::bf16 ? Element::bf16 : Element::fp32,
                  .recompute = deck.worker.recompute == Recompute::automatic ? Recompute::none : deck.worker.recompute,
                  .chunk_tokens = deck.worker.chunk_tokens};
  plan.is_barrier = barrier_blocks(plan.layout, ChargedCost(deck).blocks(), deck.barriers);
  if (deck.delay.predict) {
    std::vector<bool> may_be_late = plan.is_barrier;
    may_be_late.flip();
    plan.predicted_slots = append_slots(plan.slots, plan.shards, may_be_late);
  }
  plan.noise_block = noise_block(plan.layout, deck.sensitivity.noise_block);
  if (plan.deck.unit_tokens == 0) plan.deck.unit_tokens = default_unit_tokens(deck, roles.workers());
  return plan;
}

}  // namespace hat
