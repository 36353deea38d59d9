#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "hat/comm/link_speed.hpp"
#include "hat/comm/roles.hpp"
#include "hat/config/deck.hpp"
#include "hat/core/duration.hpp"
#include "hat/gradient/slot_table.hpp"
#include "hat/model/batch_size.hpp"
#include "hat/model/compute_options.hpp"
#include "hat/model/layout.hpp"
#include "hat/model/range_exchange.hpp"
#include "hat/model/shard_plan.hpp"

namespace hat {

/// What all ranks agree on before the run, decided once and never changed.
struct RunPlan {
  Deck deck;                 ///< model.vocabulary and unit_tokens set; batch_tokens: of a step of mean length
  int64_t piece_tokens = 0;  ///< longest sequence that documents are cut into
  std::string deck_text;     ///< the effective deck, as OptionSet::effective writes it
  ModelLayout layout;
  RolePlan roles;
  ShardPlan shards;
  SlotTable slots;
  /// By part: where its predictions lie. None without staleness.predict, and none of blocks that are never late.
  std::vector<PartSlots> predicted_slots;
  std::vector<bool> is_barrier;  ///< by block; always so (barriers = sensitivity adds others: BarrierSchedule)
  int64_t first_step = 0;        ///< where training starts or continues
  int64_t end_step = 0;          ///< one behind the last
  int64_t log_attempt = 0;       ///< number of this start in the gradient log; 0: nothing is written there
  int64_t slot_count = 0;        ///< versions of a block kept for pulls
  ComputeOptions compute;        ///< of all workers
  /// By worker: the index of its CUDA device among those that its process sees; empty on CPUs.
  std::vector<int> device_of_worker;
  /// By worker: whether it is the one that reads the counters of its CUDA device (not every sharer does); empty on
  /// CPUs.
  std::vector<bool> counts_device;
  /// NCCL sums barrier blocks' gradients, on CUDA devices; otherwise MPI does, in the host's memory.
  bool sums_with_nccl = false;
  int64_t nccl_bytes = 0;    ///< that NCCL takes of a device then, about
  int64_t noise_block = -1;  ///< number of sensitivity.noise_block
  /// By worker: number of the group that shares its pulls (pull.share; of one node), empty: nobody shares.
  std::vector<int> pull_group;
  std::vector<int> node_of_worker;  ///< counted from 0; an emulated network may have more nodes than there are
  LinkSpeeds links;                 ///< between workers, as measured at the start
  int64_t least_gang = 0;           ///< workers that a sequence of more than unsplit_tokens needs; 0: none does
  int64_t unsplit_tokens = 0;       ///< most tokens of a unit of one worker
  /// What workers are prepared to compute; of gangs about, for their ranges follow from speeds.
  std::vector<BatchSize> largest_batches;
  Deadline deadline;         ///< of the run, as server 0 knows it
  int64_t worker_bytes = 0;  ///< estimate of what the rank of a worker occupies beside the program; for the log
  int64_t device_bytes = 0;  ///< the same of a worker's CUDA device; 0 on CPUs

  bool unbounded() const { return deck.staleness == kUnbounded; }
  int device_of(int worker) const {
    return device_of_worker.empty() ? 0 : device_of_worker[static_cast<size_t>(worker)];
  }
  bool counts_device_of(int worker) const {
    return !counts_device.empty() && counts_device[static_cast<size_t>(worker)];
  }
  /// Every unit is pushed by itself (one update per push, or pushes added in unit order).
  bool pushes_single_units() const { return unbounded() || deck.deterministic; }
  /// A sequence may be computed by several workers at once. They compute on the same versions, which unbounded nothing
  /// names.
  bool forms_gangs() const {
    return deck.gang.policy != SplitPolicy::never && !unbounded() && roles.workers() > 1 && gang_workers() > 1;
  }
  /// Most workers of one gang.
  int64_t gang_workers() const {
    return deck.gang.max_workers == 0 ? roles.workers() : std::min<int64_t>(deck.gang.max_workers, roles.workers());
  }
  /// Barrier blocks are chosen while the run goes on.
  bool barriers_change() const;
  /// Workers send a sketch of each gradient that leaves.
  bool records_sketches() const { return deck.sensitivity.record || barriers_change(); }
  /// Workers in the pull group of this one, itself included; 1: it has its parameters for itself.
  int64_t pull_sharers(int worker) const;
  /// A worker on `world_rank` computes with the slots of `block` themselves: they are of its own process, the block is
  /// one run of fp32 values there, and staleness is bounded (worker/parameter_cache.hpp tells why that is needed).
  bool reads_in_place(int64_t block, int world_rank) const;
  /// S of one step, bounded: 0 in the first staleness.sync_steps.
  int64_t staleness_of(int64_t step) const { return step < deck.delay.sync_steps ? 0 : deck.staleness; }
  /// The oldest version of `block` on which step `step` may be computed (unbounded: any).
  int64_t oldest_version(int64_t block, int64_t step) const;
  /// Where pulls of blocks, as they are or as predicted, find their parts.
  const std::vector<PartSlots>& slots_of(bool predicted) const { return predicted ? predicted_slots : slots.parts; }
};

/// Sets plan.node_of_worker, and plan.pull_group where the deck allows it. `node_of_rank`: by world rank; emulated
/// nodes divide them further.
void group_workers(RunPlan& plan, const std::vector<int>& node_of_rank);

GangWire gang_wire(const RunPlan& plan);
/// What an emulated network is to count for a byte of keys and values, where it counts parameters as they are.
double exchange_charge(const RunPlan& plan);

/// A checkpoint is written after this many steps.
bool checkpoint_due(const RunPlan& plan, int64_t steps);

/// Lays out shards, slots and barriers for a deck whose model.vocabulary is set. Throws InputError on what cannot be
/// had, such as more servers than the model can be spread over.
RunPlan make_run_plan(const Deck& deck, const RolePlan& roles);

}  // namespace hat
