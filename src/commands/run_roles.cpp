#include "commands/run_roles.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "commands/rank_trace.hpp"
#include "commands/run_description.hpp"
#include "hat/comm/backoff.hpp"
#include "hat/comm/emulated_network.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/comm/rank_watch.hpp"
#include "hat/commands/generation.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/fault.hpp"
#include "hat/core/proc.hpp"
#include "hat/core/silence.hpp"
#include "hat/device/nccl_communicator.hpp"
#include "hat/gradient/node_slots.hpp"
#include "hat/model/charged_cost.hpp"
#include "hat/server/server.hpp"
#include "hat/worker/worker.hpp"

namespace hat {

namespace {

bool is_first_worker_of_node(const RolePlan& roles, const std::vector<int>& node_of_rank, int worker) {
  const auto node = [&](int w) {
    return node_of_rank[static_cast<size_t>(roles.rank_of_worker[static_cast<size_t>(w)])];
  };
  for (int before = 0; before < worker; ++before) {
    if (node(before) == node(worker)) return false;
  }
  return worker >= 0;
}

/// Null: the deck asks for none.
std::unique_ptr<EmulatedNetwork> emulate_network(const RunPlan& plan, const Communicator& world) {
  const EmulatedNetworkConfig& config = plan.deck.emulation.network;
  if (!config.on()) return nullptr;
  auto network = std::make_unique<EmulatedNetwork>(config, world, plan.roles.rank_of_server,
                                                   ChargedCost(plan.deck).bytes_per_byte(), plan.deck.seed);
  world.charge_transfers_to(*network);
  return network;
}

/// What a rank tells the others of its links.
struct MeasuredLinks {
  LinkSpeeds speeds;
  template <class F>
  void fields(F& f) {
    f(speeds);
  }
};

/// What the workers' links do, on all ranks, servers included. Collective.
LinkSpeeds links_of(const RunPlan& plan, const Communicator& world, const Communicator& workers, bool is_worker) {
  LinkSpeeds own;
  if (is_worker) {
    try {
      own = measure_links(workers, plan.node_of_worker, plan.deck.timeout_s);
    } catch (const RankLost&) {
      throw;
    } catch (const Error& error) {
      if (!plan.deck.emulation.network.on()) throw;
      throw Error(fmt::format("{}; comm.emulate.bandwidth is bytes/s: with {} a message of 4 KiB takes {:.3g} s",
                              error.what(), plan.deck.emulation.network.bandwidth,
                              4096 / plan.deck.emulation.network.bandwidth));
    }
  }
  LinkSpeeds all;
  for (const std::string& text : world.all_gather(packed(MeasuredLinks{.speeds = own}))) {
    all = slower_of(all, unpacked<MeasuredLinks>(text).speeds);
  }
  // Where no two successive workers share a node, or all do: what is known is the better guess.
  if (!std::isfinite(all.inside.bytes_per_s)) all.inside = all.between;
  if (!std::isfinite(all.between.bytes_per_s)) all.between = all.inside;
  return all;
}

/// What a rank has while it lives its role. Where a rank of the run was lost it is left as it is: messages may still
/// arrive in its memory, and freeing windows and communicators would wait for the dead.
struct RoleLife {
  std::unique_ptr<RankTrace> trace = nullptr;
  std::optional<EnergyCounter> energy = {};
  std::unique_ptr<EmulatedNetwork> network = nullptr;
  std::unique_ptr<Window> window = nullptr;
  std::optional<Communicator> workers = {};
  std::unique_ptr<NcclCommunicator> nccl = nullptr;
  std::optional<Communicator> sharers = {};
  std::optional<NodeSlots> node_slots = {};
  std::unique_ptr<Server> server = nullptr;
  std::unique_ptr<Worker> worker = nullptr;
};

/// Null: MPI sums for the workers. Collective over them; `look` as the communicator's.
std::unique_ptr<NcclCommunicator> join_nccl(const RunPlan& plan, const Communicator& workers, int worker,
                                            const std::function<void()>& look) {
  if (!plan.sums_with_nccl) return nullptr;
  choose_nccl_algorithm(plan.deck.nccl.algorithm);
  const std::string id = workers.broadcast(worker == 0 ? NcclCommunicator::make_id() : "", 0);
  return std::make_unique<NcclCommunicator>(id, workers.size(), worker, plan.compute.device_at(plan.device_of(worker)),
                                            start_patience_s(plan.deck), look);
}

/// The run itself: a window for the parameters, then each rank lives its role.
void live(RoleLife& life, RunSetup& setup, const Communicator& world, const std::vector<int>& node_of_rank,
          const RunSurroundings& surroundings) {
  const RunPlan& plan = setup.plan;
  setup.enter_blocking("making the windows for parameters");
  life.trace = std::make_unique<RankTrace>(plan, world, node_of_rank, setup.server, setup.worker);
  if (is_first_worker_of_node(plan.roles, node_of_rank, setup.worker)) life.energy.emplace();
  const int64_t before = resident_bytes() - shared_resident_bytes();
  life.network = emulate_network(plan, world);
  life.window = std::make_unique<Window>(
      world, setup.server >= 0 ? plan.slots.window_bytes[static_cast<size_t>(setup.server)] : 0);
  life.workers = world.split(setup.worker >= 0 ? 0 : -1);
  const bool shares = setup.worker >= 0 && plan.pull_sharers(setup.worker) > 1;
  life.sharers = world.split(shares ? plan.pull_group[static_cast<size_t>(setup.worker)] : -1);
  if (shares) life.node_slots.emplace(plan, *life.sharers);
  if (life.network && setup.worker >= 0) life.workers->charge_transfers_to(*life.network);
  const auto look_after_ranks = [&surroundings] {
    if (surroundings.watch != nullptr) surroundings.watch->throw_if_lost();
  };
  if (setup.worker >= 0) {
    setup.enter_blocking("joining the NCCL communicator of the workers");
    life.nccl = join_nccl(plan, *life.workers, setup.worker, look_after_ranks);
  }
  setup.enter_blocking("measuring links between workers");
  if (plan.forms_gangs()) {
    setup.plan.links = links_of(plan, world, *life.workers, setup.worker >= 0);
    if (setup.server == 0) describe_links(plan);
  }
  setup.enter("filling in start values", setup.checkpoint ? bytes_of_files(setup.checkpoint->folder()) : 0);
  if (setup.server >= 0) {
    const CheckpointReader* checkpoint = setup.checkpoint ? &*setup.checkpoint : nullptr;
    life.server = std::make_unique<Server>(plan, setup.server, *setup.dataset, world, *life.window, checkpoint,
                                           life.trace->of_server());
  }
  setup.checkpoint.reset();  // rotation will remove it, which open files would hinder on network file systems
  world.barrier();           // start values are published
  setup.leave();
  if (setup.worker >= 0) {
    const SampleConfig& sample = plan.deck.sample;
    // Everybody waits for the sample: of a large model it is shorter rather than late.
    const Worker::Sampler sampler = [&setup, &plan, &sample](Transformer& model, const ParameterPointers& parameters,
                                                             const std::function<bool()>& goes_on) {
      const double end_s = now_s() + plan.deck.timeout_s / 4;
      return generate_text(model, parameters, setup.dataset->tokenizer(), sample.prompt, sample.tokens,
                           sample.temperature, plan.deck.seed, [&] { return goes_on() && now_s() < end_s; });
    };
    std::function<void()> beside;
    if (life.server || surroundings.watch != nullptr) {
      beside = [look_after_ranks, server = life.server.get()] {
        look_after_ranks();
        if (server != nullptr) server->progress();
      };
    }
    life.worker = std::make_unique<Worker>(
        plan, setup.worker, *setup.dataset, world, *life.workers, life.nccl.get(), *life.window,
        life.node_slots ? &*life.node_slots : nullptr, beside, sampler, before,
        setup.plan.compute.device == DeviceKind::cuda && setup.device_sharers == 1 ? setup.free_of_device : -1,
        life.trace->of_worker(), life.energy ? &*life.energy : nullptr);
    life.worker->run();
    life.worker.reset();
  }
  Backoff backoff;
  while (life.server && !life.server->finished()) {
    look_after_ranks();
    if (life.server->progress()) {
      backoff.reset();
    } else {
      backoff.pause();
    }
  }
  fault_point(FaultPoint::shutdown);
  if (surroundings.result != nullptr && setup.server == 0) *surroundings.result = life.server->result();
  // Some say that they are there to one that has ended: while the last checkpoint is written, for instance.
  const auto hears = [&world, look_after_ranks] {
    look_after_ranks();
    bool any = false;
    for (const MailTag tag : {MailTag::to_worker, MailTag::to_server}) {
      while (world.try_receive(static_cast<int>(tag))) any = true;
    }
    return any;
  };
  world.wait_barrier(plan.deck.timeout_s, "the other ranks to end", hears);
  hears();
  life.trace->write();
  if (setup.server == 0) life.server->mark_finished();
  if (setup.watchdog != nullptr) {  // nothing of the run is lost any more, and others may have ended already
    setup.watchdog->set_trouble({});
    setup.watchdog->set_last_word([](const std::string& line) {
      fmt::print(stderr, "hat: {}; all files of the run are complete\n", line);
      return static_cast<int>(ExitCode::success);
    });
  }
  setup.enter_blocking("freeing the windows for parameters");
}

/// Whether an error is what the death of another rank looks like from here (a connection that breaks, say): that is
/// noticed a moment later. Throws RankLost then.
void blame_lost_ranks(RankWatch* watch) {
  constexpr double kMoment_s = 2;
  if (watch == nullptr) return;
  Backoff backoff;
  for (const double begin_s = now_s(); now_s() - begin_s < kMoment_s; backoff.pause()) watch->throw_if_lost();
}

}  // namespace

void run_roles(RunSetup& setup, const Communicator& world, const std::vector<int>& node_of_rank,
               const RunSurroundings& surroundings) {
  auto life = std::make_unique<RoleLife>();
  const auto leave_as_it_is = [&life, &surroundings](const std::set<int>& lost) {
    surroundings.watch->tell_others(lost);
    if (life->server) life->server->abandon();
    if (life->nccl) life->nccl->abort();            // its kernels would wait for the dead, and keep the device
    if (life->worker) life->worker->free_device();  // for the next attempt
    life->nccl.reset();
    (void)life.release();
  };
  try {
    live(*life, setup, world, node_of_rank, surroundings);
  } catch (const RankLost& lost) {
    leave_as_it_is(lost.ranks());
    throw;
  } catch (const SilentRanks& silent) {  // of another host, where nobody was left to say so
    if (surroundings.watch == nullptr) {
      (void)life.release();
      throw;
    }
    leave_as_it_is(silent.ranks());
    throw RankLost(silent.ranks(), silent.what());
  } catch (const std::exception&) {
    try {
      blame_lost_ranks(surroundings.watch);
    } catch (const RankLost& lost) {
      leave_as_it_is(lost.ranks());
      throw;
    }
    (void)life.release();  // the job is aborted without another call of MPI
    throw;
  }
}

}  // namespace hat
