#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "hat/device/gpu_counter.hpp"
#include "hat/worker/worker.hpp"
#include "worker/device_parameters.hpp"
#include "worker/emulated_device.hpp"
#include "worker/gang_exchange.hpp"
#include "worker/gradient_sender.hpp"
#include "worker/lease_desk.hpp"
#include "worker/parameter_cache.hpp"
#include "worker/staleness_guard.hpp"
#include "worker/worker_trace.hpp"

namespace hat {

/// The loop of a worker. It is also the observer of its own passes: there it waits for parameters at their first use
/// and sends gradients as soon as the backward pass leaves a block.
///   worker.cpp         the loop, and its units
///   worker_pass.cpp    a pass: what it waits for, and what leaves it
///   worker_upkeep.cpp  what goes on beside computing, and the summary at the end
struct Worker::Impl : PassObserver {
  Impl(const RunPlan& run_plan, int worker_number, const Dataset& dataset, const Communicator& world,
       const Communicator& workers, NcclCommunicator* nccl, const Window& window, const NodeSlots* node_slots,
       std::function<void()> beside_it, Sampler sample, int64_t resident_bytes_before, int64_t free_before,
       TraceRecorder* recorder, EnergyCounter* counter);

  void run();
  LeasedWork next_work();
  void train(LeasedWork& work);
  void begin_gang(const GangRange& range);
  void tell_what_was_computed(const PackedBatch& batch);
  void evaluate(LeasedWork& work);
  void close_steps_before(int64_t step);
  void say_goodbye(int64_t end_step);
  void progress();
  void tell_of_signal();
  void say_alive(bool computes);
  void read_energy();
  AccountReading account_reading();

  void before_forward(int64_t block) override;
  void before_backward() override;
  void after_backward(int64_t block) override;
  void wait_for(const Stream& stream) override;
  void before_growth() override;
  void free_device() noexcept;

  ParameterCache::Need need(int64_t block, const Lease& lease) const;
  double computed_seconds();
  void copy_ahead();
  void ask_ahead();
  void take_answers(bool wait);
  void look_for_next_lease(bool wait);
  void prefetch(const Lease& lease);
  void expect_next_step(int64_t block);
  bool is_single(int64_t block) const;
  bool ends_step(const Lease& lease) const;
  void send_block(int64_t block);
  void send_left();
  void send_all_clipped();
  std::vector<double> squares_of_blocks();

  const RunPlan& plan;
  int worker;
  std::function<void()> beside;
  Sampler sampler;
  int64_t resident_before;
  int64_t device_free_before;  // negative: not known
  EnergyCounter* energy;       // null: another worker of the node reads it
  double energy_read_s = 0;
  std::optional<GpuCounter> gpu;  // of a worker on a CUDA device, of the first where several share it
  double gpu_read_s = 0;
  WorkerTrace trace;
  Stream compute;
  Account account;
  Mailbox mailbox;
  Waiting waiting;
  BarrierSchedule barriers;
  LeaseDesk leases;
  ParameterCache cache;
  DeviceParameters on_device;
  GradientSender sender;
  StalenessGuard guard;
  GangExchange gang;
  TraceRecorder* exchange_trace;
  Transformer model;
  ParameterPointers parameters;
  GradientPointers gradients;
  DeviceBuffer<double> squares;  // of each block's gradient; unbounded
  PinnedBuffer<double> squares_on_host;
  std::unique_ptr<EmulatedDevice> emulated;  // null: this machine's own speed

  // The unit being computed.
  Lease current;
  std::deque<LeasedWork> upcoming;  // leased and prefetched, not begun: prefetch.depth of them
  int64_t unit_tokens = 0;
  std::vector<int64_t> versions_used;  // by block
  bool next_is_known = false;          // the lease after it is here
  bool last_of_step = false;           // of this worker, as far as is known
  int64_t left = 0;                    // the backward pass has left the blocks from this one on
  int64_t unsent = 0;                  // of those, blocks up to this one wait for `next_is_known`
  bool in_backward = false;            // of the unit
  bool recomputing = false;            // the unit is computed again (staleness.over_limit)
  int64_t closed_step;                 // everything of the steps before is pushed, and their rings are entered
  double previous_norm = -1;           // unbounded, clip = previous: of this worker's last gradient

  int64_t trained_tokens = 0;
  int64_t trained_units = 0;

  double begin_s = 0;  // of the account
  double alive_s = 0;  // when it last said that it is there
  bool told_of_signal = false;
  std::vector<double> block_waits;  // seconds, by block
};

}  // namespace hat
