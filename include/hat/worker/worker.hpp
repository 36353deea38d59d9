#pragma once
#include <functional>
#include <memory>
#include <string>

#include "hat/comm/communicator.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/device/nccl_communicator.hpp"
#include "hat/gradient/node_slots.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/metrics/energy_counter.hpp"
#include "hat/metrics/trace.hpp"
#include "hat/model/transformer.hpp"

namespace hat {

/// One worker: leases units, pulls parameters, computes, sends gradients, until the ledger says that it is finished.
class Worker {
 public:
  /// Text generated with the trained model, for the summary. Asks `goes_on` before every token whether to end early.
  using Sampler =
      std::function<std::string(Transformer&, const ParameterPointers&, const std::function<bool()>& goes_on)>;

  /// `workers`: communicator of all workers, for rings; `nccl`: the same of their GPUs, or nullptr: MPI sums for them,
  /// too. `node_slots`: parameters kept together with other workers, or nullptr. `beside`: called whenever the worker
  /// has a moment, may be empty: what else its rank does, such as letting its server work. `sampler` is used by worker
  /// 0, at the end. `resident_before`: bytes of its own this process occupied before any of the run's memory was made,
  /// for the summary; `device_free_before`: the same of what was free on its device, negative: not known, or others use
  /// it. `trace` and `energy` (counters of the node, of its first worker) may be null.
  Worker(const RunPlan& plan, int worker, const Dataset& dataset, const Communicator& world,
         const Communicator& workers, NcclCommunicator* nccl, const Window& window, const NodeSlots* node_slots,
         std::function<void()> beside, Sampler sampler, int64_t resident_before, int64_t device_free_before,
         TraceRecorder* trace, EnergyCounter* energy);
  ~Worker();

  /// The whole working life. Throws Error when the run cannot go on.
  void run();

  /// Gives back all memory of its device, whatever the run was doing: it cannot go on after that, but all that MPI may
  /// still read or write stays. The sums over workers were aborted before.
  void free_device() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
