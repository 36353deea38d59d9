#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// What the ranks of a run will occupy, by use, in bytes. Counted from the sizes of the buffers that will be made; the
/// program, the libraries and the network come on top.
struct WorkerMemory {
  /// Copies: one is computed with while prefetch.depth others are pulled; none of what is read in place. Where slots
  /// are kept together by the workers of a node, this worker's share of them. On a CUDA device: of each block two.
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t activations = 0;  ///< kept and scratch, for the largest unit there can be
  /// CUDA: what matrix products and sums over rows need beside, and NCCL's buffers, about.
  int64_t libraries = 0;
  /// CUDA: what comes to the device and leaves it, in memory of the host.
  int64_t staging = 0;
  bool on_device = false;
  /// Of the memory that it computes in: the device's, or the host's.
  int64_t total() const { return parameters + gradients + activations + libraries; }
  int64_t on_host() const { return on_device ? staging : total(); }
};
struct ServerMemory {
  int64_t slots = 0;  ///< versions kept for pulls, and with pull.format bf16 the fp32 values
  int64_t optimizer = 0;
  int64_t gradients = 0;    ///< sums of the steps that can be open at once, pushes that wait for their turn in them
                            ///< (deterministic), and a push of each worker on its way
  int64_t checkpoints = 0;  ///< copies of values and optimizer state while a checkpoint is written
  int64_t total() const { return slots + optimizer + gradients + checkpoints; }
};

/// Tokens of the largest unit of one worker and of the longest sequence that a run on this dataset will see.
struct UnitSizes {
  int64_t tokens = 0;
  int64_t longest = 0;
  int64_t least_gang = 0;  ///< workers that a sequence longer than a unit needs; 0: one worker computes each
};
UnitSizes unit_sizes(const Dataset& dataset, const RunPlan& plan);

/// The batches that such units come to, as large as they can be; of gangs, whose ranges follow from speeds, those of
/// equal ones.
std::vector<BatchSize> largest_batches(const RunPlan& plan, const UnitSizes& sizes);

WorkerMemory worker_memory(const RunPlan& plan, const UnitSizes& sizes, Recompute recompute);
ServerMemory server_memory(const RunPlan& plan, int server);
/// Bytes on the rank of a worker: a worker's, and a server's where it is both.
int64_t rank_of_worker_bytes(const RunPlan& plan, const UnitSizes& sizes, Recompute recompute);

/// Bytes that one worker on node `node` may use when the node has `available` (0: not known) for all ranks of the run;
/// no limit where there is no worker. Throws InputError when its servers alone need more.
int64_t worker_share(const RunPlan& plan, const std::vector<int>& node_of_rank, int node, int64_t available);

/// What follows from a worker's memory.
struct MemoryChoice {
  Recompute recompute = Recompute::none;  ///< the deck's, or the first level that fits
  UnitSizes units;                        ///< where a worker cannot hold the longest sequence: what it can
  bool gangs = true;                      ///< false: what the ranges of a gang need beside does not fit
};
/// Where a worker computes it may use worker.memory_gib. Of the host it may use `share`, and of its CUDA device
/// `device_share`. Throws InputError with the numbers when nothing fits.
MemoryChoice choose_by_memory(const RunPlan& plan, const UnitSizes& sizes, int64_t share,
                              int64_t device_share = std::numeric_limits<int64_t>::max());

enum class Rounding { up, down };
/// "1.25 GiB": of what is needed rounded up, so that a limit of that many is enough; a limit is rounded down.
std::string gib(int64_t bytes, Rounding rounding = Rounding::up);

}  // namespace hat
