#include "commands/training_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "commands/all_ranks.hpp"
#include "commands/compute_choice.hpp"
#include "commands/delay_text.hpp"
#include "commands/machine.hpp"
#include "commands/memory_plan.hpp"
#include "commands/rank_trace.hpp"
#include "commands/recovery.hpp"
#include "commands/run_deadline.hpp"
#include "commands/run_folder.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/comm/backoff.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/comm/emulated_network.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/comm/rank_watch.hpp"
#include "hat/commands/generation.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/fault.hpp"
#include "hat/core/proc.hpp"
#include "hat/core/silence.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/gradient/node_slots.hpp"
#include "hat/gradient/shard_size.hpp"
#include "hat/model/charged_cost.hpp"
#include "hat/model/precision_choice.hpp"
#include "hat/server/server.hpp"
#include "hat/worker/worker.hpp"

namespace hat {

namespace {

/// Steps that the deck asks for, counted from the beginning of training.
int64_t steps_of(const Deck& deck, DataOrder& order) {
  if (deck.train.steps > 0) return deck.train.steps;
  if (deck.train.tokens > 0) return order.steps_for_tokens(deck.train.tokens);
  return order.steps_for_epochs(deck.train.epochs);
}

/// All that a rank needs before the first message.
struct Setup {
  std::optional<Dataset> dataset;
  std::optional<CheckpointReader> checkpoint;
  RunPlan plan;
  std::unique_ptr<RunFolderLock> lock;  ///< of server 0, until the end of the run
  UnitSizes units;
  bool has_room_for_gangs = true;
  ProductTimes product_times;  ///< zero: not measured
  int64_t fewest_cores = 0;    ///< that a worker may use
  int server = -1;             ///< number of this rank's server, or -1
  int worker = -1;
  Watchdog* watchdog = nullptr;

  /// The collectives from here on. `file_bytes`: what some rank reads or writes meanwhile.
  void enter(const char* phase, int64_t file_bytes = 0) const {
    constexpr double kSlowestDisk = 10e6;  // bytes/s
    if (watchdog == nullptr) return;
    watchdog->enter(phase, start_patience_s(plan.deck) + static_cast<double>(file_bytes) / kSlowestDisk);
  }
  /// What comes has its own time-outs.
  void leave() const {
    if (watchdog != nullptr) watchdog->leave();
  }
};

/// Bytes of all files in a folder, or of a file; 0 where that cannot be seen.
int64_t bytes_of_files(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error))
    return static_cast<int64_t>(std::filesystem::file_size(path, error));
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

/// Of the checkpoints, or the log, of a run.
int64_t bytes_in_folders(const std::filesystem::path& run, const char* name) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator(run / name, error)) {
    bytes += bytes_of_files(folder.path());
  }
  return bytes;
}

int position_of(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void check_dataset(const Dataset& dataset, const Deck& deck, int workers) {
  const std::string file = dataset.path().string();
  for (const Split split : {Split::train, Split::validation}) {
    if (dataset.documents(split) == 0) {
      throw InputError(file, split == Split::train ? "/train" : "/validation", "has no documents");
    }
  }
  if (dataset.documents(Split::train) < workers) {
    throw InputError(file, "/train",
                     fmt::format("{} cannot keep {} busy: start fewer ranks",
                                 counted(dataset.documents(Split::train), "document"), counted(workers, "worker")));
  }
  if (deck.model.vocabulary < dataset.tokenizer().vocabulary()) {
    throw KeyError("model.vocabulary", fmt::format("{} is less than the {} tokens of {}", deck.model.vocabulary,
                                                   dataset.tokenizer().vocabulary(), file));
  }
}

void check_threads(const Deck& deck) {
  const int cores = describe_machine().cores_here;
  if (deck.worker.threads <= cores) return;
  throw KeyError("worker.threads",
                 fmt::format("{} threads a worker, but a node has {} core{}: they would only wait for each other",
                             deck.worker.threads, cores, cores == 1 ? "" : "s"));
}

/// Everything that can be refused is refused here; nothing is written.
void prepare(const Communicator& world, const std::vector<int>& node_of_rank, Deck deck, const std::string& deck_text,
             Setup& setup) {
  const RolePlan roles = plan_roles(node_of_rank, deck.servers, deck.placement);
  setup.server = position_of(roles.rank_of_server, world.rank());
  setup.worker = position_of(roles.rank_of_worker, world.rank());
  check_emulated_ranks(deck.emulation, roles.workers(),
                       *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1);
  if (setup.worker >= 0) check_threads(deck);
  setup.dataset.emplace(deck.data.path);
  if (deck.model.vocabulary == 0) deck.model.vocabulary = setup.dataset->tokenizer().vocabulary();
  check_dataset(*setup.dataset, deck, roles.workers());
  if (deck.gang.policy == SplitPolicy::always && roles.workers() == 1) {
    throw KeyError("split.policy", "always needs at least two workers");
  }
  DataOrder order(*setup.dataset, deck, piece_tokens(deck));
  deck.batch_tokens = order.mean_step_tokens();
  setup.plan = make_run_plan(deck, roles);
  group_workers(setup.plan, node_of_rank);
  setup.plan.deck_text = deck_text;
  if (setup.server == 0 && deck.train.epochs > 0 && order.counts_long(deck.train.epochs)) {
    fmt::print("counting the steps of {} passes; train.steps or train.tokens instead of train.epochs need none of it\n",
               deck.train.epochs);
    std::fflush(stdout);
  }
  setup.plan.end_step = steps_of(deck, order);
  if (setup.server == 0) {
    check_run_folder(deck);
    // Refuses eval.tokens that no document fits into.
    validation_groups(*setup.dataset, deck.model.max_length, setup.plan.deck.unit_tokens, deck.eval.tokens);
  }
  const bool begins = !deck.resume || has_not_begun(deck.output);
  if (deck.resume && begins && setup.server == 0) {
    fmt::print("{}: the run had not begun; it begins now\n", deck.output);
  }
  if (!begins) {
    setup.checkpoint.emplace(checkpoint_to_continue(deck.output));
    check_continuation(*setup.checkpoint, setup.plan, *setup.dataset);
    setup.plan.first_step = setup.checkpoint->state().step;
    if (setup.server == 0) check_undamaged(*setup.checkpoint);
  }
}

/// Precision auto: what the slowest worker needs less time for. Equal bits in every run are promised with
/// `deterministic`, so nothing is measured then.
ExitCode choose_precision(const Communicator& world, Setup& setup) {
  RunPlan& plan = setup.plan;
  if (plan.deck.precision != Precision::automatic || plan.deck.deterministic) return ExitCode::success;
  const ExitCode code = measure_slowest(world, setup.worker >= 0, plan.deck.model, plan.compute, setup.product_times);
  if (code != ExitCode::success) return code;
  plan.compute.arithmetic = faster_of(setup.product_times);
  return ExitCode::success;
}

/// Validation is not split.
void check_validation(const Dataset& dataset, const RunPlan& plan) {
  if (plan.least_gang == 0) return;
  for (const std::vector<Sequence>& group :
       validation_groups(dataset, plan.deck.model.max_length, plan.deck.unit_tokens, plan.deck.eval.tokens)) {
    for (const Sequence& sequence : group) {
      if (sequence.length <= plan.unsplit_tokens) continue;
      throw InputError(
          dataset.path().string(), "/validation",
          fmt::format("has a sequence of {} tokens, a worker has memory for {}, and validation is not split: "
                      "set eval.tokens to less than its length",
                      with_commas(sequence.length), with_commas(plan.unsplit_tokens)));
    }
  }
}

/// Decides what the deck leaves open, the same on all ranks, and refuses what does not fit into memory.
ExitCode choose_compute(const Communicator& world, const std::vector<int>& node_of_rank, Setup& setup,
                        const KeyBlame& blame) {
  ExitCode code = choose_precision(world, setup);
  if (code != ExitCode::success) return code;
  RunPlan& plan = setup.plan;
  const Machine machine = describe_machine();
  int64_t share = 0;
  const auto checked = [&](auto job) { return on_all_ranks(world, job, blame); };
  code = checked([&] {
    setup.units = unit_sizes(*setup.dataset, plan);
    const int node = node_of_rank[static_cast<size_t>(world.rank())];
    share = worker_share(plan, node_of_rank, node, machine.available_bytes);
  });
  if (code != ExitCode::success) return code;
  share = -world.all_reduce_max(-share);  // of the node with the least
  setup.fewest_cores = -world.all_reduce_max(setup.worker >= 0 ? -machine.cores : -plan.deck.worker.threads);
  return checked([&] {
    const MemoryChoice choice = choose_by_memory(plan, setup.units, share);
    const bool by_memory = !choice.gangs || choice.units.least_gang > 0;
    if (plan.deck.deterministic && by_memory && plan.deck.worker.memory_gib == 0) {
      throw KeyError("deterministic",
                     "what is split would depend on the memory that happens to be available: set worker.memory_gib, "
                     "or split.policy never");
    }
    plan.compute.recompute = choice.recompute;
    setup.units = choice.units;
    setup.has_room_for_gangs = choice.gangs;
    if (!choice.gangs) plan.deck.gang.policy = SplitPolicy::never;
    plan.least_gang = choice.units.least_gang;
    plan.unsplit_tokens = choice.units.tokens;
    check_validation(*setup.dataset, plan);
    plan.worker_bytes = rank_of_worker_bytes(plan, setup.units, plan.compute.recompute);
  });
}

std::string mode_name(Mode mode) {
  switch (mode) {
    case Mode::sync:
      return "sync";
    case Mode::hybrid:
      return "hybrid";
    case Mode::async:
      break;
  }
  return "async";
}

void describe_compute(const Setup& setup) {
  const RunPlan& plan = setup.plan;
  const ComputeOptions& compute = plan.compute;
  std::string why;
  if (setup.product_times.fp32_s > 0) {
    why = fmt::format(" (auto: the model's matrix products take {:.2f} times as long in fp32 as in bf16 here)",
                      setup.product_times.fp32_s / setup.product_times.bf16_s);
  }
  fmt::print("precision: {}{}; pulls in {}; {} thread{} a worker\n", name_of(compute.arithmetic), why,
             name_of(plan.deck.pull_format), compute.threads, compute.threads == 1 ? "" : "s");
  if (setup.fewest_cores < compute.threads) {
    fmt::print(
        "warning: worker.threads = {}, but a worker is bound to {} core{}; mpirun --map-by slot:PE={} (or --bind-to "
        "none) gives it more\n",
        compute.threads, setup.fewest_cores, setup.fewest_cores == 1 ? "" : "s", compute.threads);
  }
  const WorkerMemory worker = worker_memory(plan, setup.units, compute.recompute);
  int64_t server = 0;
  for (int s = 0; s < plan.roles.servers(); ++s) server = std::max(server, server_memory(plan, s).total());
  fmt::print(
      "memory: a worker {} (parameters {}, gradients {}, activations {} for units of up to {} tokens, recompute "
      "{}), a server {}\n",
      gib(worker.total()), worker.parameters > 0 ? gib(worker.parameters) : "in the server's slots",
      gib(worker.gradients), gib(worker.activations), with_commas(setup.units.tokens), name_of(compute.recompute),
      gib(server));
}

/// A speed in other units than FLOP/s would make a run that never comes to its first step.
void warn_of_slow_devices(const RunPlan& plan) {
  constexpr double kLong_s = 3600;
  const EmulatedDeviceConfig& device = plan.deck.emulation.device;
  if (!device.on()) return;
  double speed = 0;
  for (int worker = 0; worker < plan.roles.workers(); ++worker) speed += device.speed_of(worker);
  const double flop = ChargedCost(plan.deck).total().per_token * static_cast<double>(plan.deck.batch_tokens);
  if (flop / speed < kLong_s) return;
  fmt::print(
      "warning: worker.emulate.speed is FLOP/s; a step of {:.3g} FLOP takes these devices at least {:.3g} hours\n",
      flop, flop / speed / kLong_s);
}

/// Behind a blank each; of very many the first and the last.
std::string names_of_barriers(const RunPlan& plan) {
  constexpr size_t kMostNamed = 40;
  std::vector<std::string> names;
  for (size_t block = 0; block < plan.layout.blocks.size(); ++block) {
    if (plan.is_barrier[block]) names.push_back(" " + plan.layout.blocks[block].name);
  }
  if (names.size() <= kMostNamed) return fmt::format("{}", fmt::join(names, ""));
  return fmt::format("{} ...{} ({})", names.front(), names.back(), with_commas(static_cast<int64_t>(names.size())));
}

/// What a run does before its first line of progress may take minutes then.
void warn_of_many_blocks(const RunPlan& plan) {
  constexpr int64_t kDeep = 2000;
  const auto blocks = static_cast<int64_t>(plan.layout.blocks.size());
  if (blocks < kDeep) return;
  fmt::print(
      "warning: {} blocks, each of which is pulled and pushed by itself: the start and the first validation ({} "
      "tokens) take their time\n",
      with_commas(blocks), plan.deck.eval.tokens > 0 ? "at most " + with_commas(plan.deck.eval.tokens) : "all");
}

void describe(const Setup& setup, const Communicator& world, int nodes) {
  const RunPlan& plan = setup.plan;
  const Deck& deck = plan.deck;
  std::string barriers = names_of_barriers(plan);
  const std::string staleness = plan.unbounded() ? "unbounded" : std::to_string(deck.staleness);
  fmt::print("ranks: {} ({}, {}) on {}\n", world.size(), counted(plan.roles.servers(), "server"),
             counted(plan.roles.workers(), "worker"), counted(nodes, "node"));
  if (plan.barriers_change()) barriers += " by sensitivity";
  fmt::print("mode: {}, staleness {}, barrier blocks:{}\n", mode_name(deck.mode), staleness,
             barriers.empty() ? " none" : barriers);
  const std::string remedies = describe_delay(deck);
  if (!remedies.empty()) fmt::print("remedies for delay: {}\n", remedies);
  const bool compares_steps = deck.sensitivity.over == SensitivityOver::steps;
  if (plan.barriers_change() && plan.roles.workers() == 1 && !plan.pushes_single_units() && !compares_steps) {
    fmt::print(
        "warning: one worker makes one push a step, which nothing can be compared with: no block will become a "
        "barrier block by sensitivity\n");
  }
  fmt::print("model: {} parameters in {} blocks\n", with_commas(plan.layout.size()), plan.layout.blocks.size());
  fmt::print("data: {}: {}, {}; {}, {}\n", setup.dataset->path().string(),
             counted(setup.dataset->documents(Split::train), "training document"),
             counted(setup.dataset->tokens(Split::train), "token"),
             counted(setup.dataset->documents(Split::validation), "validation document"),
             counted(setup.dataset->tokens(Split::validation), "token"));
  describe_compute(setup);
  if (!setup.has_room_for_gangs) {
    fmt::print("one sequence: by one worker, for there is no memory for the keys and values of others\n");
  } else if (plan.least_gang > 0) {
    fmt::print(
        "one sequence: of more than {} tokens by at least {} workers, or it would not fit into the memory of one\n",
        with_commas(plan.unsplit_tokens), plan.least_gang);
  }
  fmt::print("steps: {} to {}, about {} tokens each, units of about {} tokens\n", plan.first_step, plan.end_step,
             with_commas(deck.batch_tokens), with_commas(plan.deck.unit_tokens));
  warn_of_slow_devices(plan);
  warn_of_many_blocks(plan);
  const std::string limit = describe_deadline(plan.deadline);
  if (!limit.empty()) fmt::print("{}\n", limit);
  std::fflush(stdout);
}

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
  for (const std::string& text :
       world.all_gather(fmt::format("{} {} {} {}", own.inside.bytes_per_s, own.inside.latency_s,
                                    own.between.bytes_per_s, own.between.latency_s))) {
    LinkSpeeds seen;
    std::istringstream in(text);
    for (double* number :
         {&seen.inside.bytes_per_s, &seen.inside.latency_s, &seen.between.bytes_per_s, &seen.between.latency_s}) {
      std::string word;
      in >> word;
      *number = std::stod(word);  // infinity, too
    }
    all = slower_of(all, seen);
  }
  // Where no two successive workers share a node, or all do: what is known is the better guess.
  if (!std::isfinite(all.inside.bytes_per_s)) all.inside = all.between;
  if (!std::isfinite(all.between.bytes_per_s)) all.between = all.inside;
  return all;
}

void describe_links(const RunPlan& plan) {
  const auto text = [](const LinkSpeed& link) {
    return fmt::format("{}/s after {:.0f} us", human_bytes(static_cast<int64_t>(link.bytes_per_s)),
                       1e6 * link.latency_s);
  };
  std::string links = " " + text(plan.links.between);
  if (plan.links.inside.bytes_per_s > plan.links.between.bytes_per_s) {
    links = fmt::format(" inside a node {}, between nodes {}", text(plan.links.inside), text(plan.links.between));
  }
  fmt::print("one sequence: by up to {}{}; links between workers{}\n", counted(plan.gang_workers(), "worker"),
             plan.deck.gang.policy == SplitPolicy::automatic ? " where that ends a step earlier" : "", links);
  std::fflush(stdout);
}

/// What a rank has while it lives its role. Where a rank of the run was lost it is left as it is: messages may still
/// arrive in its memory, and freeing windows and communicators would wait for the dead.
struct RoleLife {
  std::unique_ptr<RankTrace> trace = nullptr;
  std::optional<EnergyCounter> energy = {};
  std::unique_ptr<EmulatedNetwork> network = nullptr;
  std::unique_ptr<Window> window = nullptr;
  std::optional<Communicator> workers = {};
  std::optional<Communicator> sharers = {};
  std::optional<NodeSlots> node_slots = {};
  std::unique_ptr<Server> server = nullptr;
  std::unique_ptr<Worker> worker = nullptr;
};

/// The run itself: a window for the parameters, then each rank lives its role.
void live(RoleLife& life, Setup& setup, const Communicator& world, const std::vector<int>& node_of_rank,
          const RunSurroundings& surroundings) {
  const RunPlan& plan = setup.plan;
  setup.enter("making the windows for parameters");
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
  setup.enter("measuring links between workers");
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
  const auto look_after_ranks = [&surroundings] {
    if (surroundings.watch != nullptr) surroundings.watch->check();
  };
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
    life.worker = std::make_unique<Worker>(plan, setup.worker, *setup.dataset, world, *life.workers, *life.window,
                                           life.node_slots ? &*life.node_slots : nullptr, beside, sampler, before,
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
  setup.enter("freeing the windows for parameters");
}

/// Whether an error is what the death of another rank looks like from here (a connection that breaks, say): that is
/// noticed a moment later. Throws RankLost then.
void blame_lost_ranks(RankWatch* watch) {
  constexpr double kMoment_s = 2;
  if (watch == nullptr) return;
  Backoff backoff;
  for (const double begin_s = now_s(); now_s() - begin_s < kMoment_s; backoff.pause()) watch->check();
}

void run_roles(Setup& setup, const Communicator& world, const std::vector<int>& node_of_rank,
               const RunSurroundings& surroundings) {
  auto life = std::make_unique<RoleLife>();
  const auto leave_as_it_is = [&life, &surroundings](const std::set<int>& lost) {
    surroundings.watch->spread(lost);
    if (life->server) life->server->abandon();
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

/// Where the reason goes once there is a run folder. Returns the exit code.
ExitCode tell_failure(const std::filesystem::path& run, int rank, const std::string& line, const std::string& note) {
  if (may_tell_failure(run, rank)) {
    fmt::print(stderr, "hat: {}{}\n", line, note);
    std::fflush(stderr);
    note_failure(run, line);
  }
  return ExitCode::failure;
}

/// Before there is a run folder: whether some rank has been asked to stop. Collective. The first one says so.
bool is_stopped(const Communicator& world) {
  const int64_t priority = stop_signal() == 0 ? 0 : world.size() - world.rank();
  const int64_t first = world.all_reduce_max(priority);
  if (first > 0 && priority == first) {
    fmt::print("stopped before the run began, nothing was written: {} on rank {}\n", signal_name(stop_signal()),
               world.rank());
  }
  return first > 0;
}

/// Number of this start in the gradient log. Without a payload a log of an earlier start still needs to be told that
/// its steps are over.
int64_t log_attempt(const Deck& deck) {
  const int64_t next = next_log_attempt(deck.output);
  return deck.log.payload == LogPayload::none && next == 1 ? 0 : next;
}

/// What all ranks have to see alike, or each would train something else.
void check_same_deck(const Communicator& world, const std::string& deck_text, const std::string& first_deck) {
  if (deck_text == first_deck) return;
  throw InputError(
      "deck", "", fmt::format("rank {} has other settings than rank 0 (deck file or HAT_* environment)", world.rank()));
}

/// Looked at before anything else that is wrong with the folder: what a process is writing is not there yet.
/// Collective.
ExitCode check_nobody_trains_in(const Communicator& world, const std::string& run) {
  return on_all_ranks(world, [&] {
    if (world.rank() == 0) check_not_held(run);
  });
}

ExitCode train_with(Setup& setup, const Communicator& world, const Deck& deck, const std::string& deck_text,
                    const RunSurroundings& surroundings) {
  setup.watchdog = surroundings.watchdog;
  setup.plan.deck = deck;
  const int64_t files =
      bytes_of_files(deck.data.path) + (deck.resume ? bytes_in_folders(deck.output, "checkpoints") : 0);
  setup.enter("comparing decks of all ranks");
  const std::vector<int> node_of_rank = world.node_of_rank();
  const std::string first_deck = world.broadcast(deck_text, 0);
  ExitCode code = on_all_ranks(world, [&] { check_same_deck(world, deck_text, first_deck); });
  if (code == ExitCode::success) code = check_nobody_trains_in(world, deck.output);
  if (code == ExitCode::success && deck.resume) {
    // Replaying is slower than reading: ten times the time.
    setup.enter("recovering from the gradient log",
                10 * (bytes_in_folders(deck.output, "checkpoints") + bytes_in_folders(deck.output, "log")));
    code = recover_run(world, deck.output);
  }
  if (code != ExitCode::success) return code;
  setup.enter("checking deck and data on all ranks", files);
  code = on_all_ranks(
      world, [&] { prepare(world, node_of_rank, deck, deck_text, setup); }, surroundings.blame);
  if (code != ExitCode::success) return code;
  const bool has_ended = setup.server == 0 && is_over(setup.plan);
  if (world.all_reduce_max(has_ended ? 1 : 0) > 0) {
    if (has_ended) {
      fmt::print("{} is finished: its {} {} done, nothing changes; more train.steps continue it\n",
                 setup.plan.deck.output, counted(setup.plan.end_step, "step"), setup.plan.end_step == 1 ? "is" : "are");
    }
    return ExitCode::success;
  }
  setup.enter("measuring what ranks can do");
  code = choose_compute(world, node_of_rank, setup, surroundings.blame);
  if (code != ExitCode::success || is_stopped(world)) return code;
  fault_point(FaultPoint::start);
  setup.enter("making the run folder", deck.resume ? bytes_in_folders(deck.output, "checkpoints") : 0);
  if (setup.server == 0 && surroundings.begin_s) {
    setup.plan.deadline = run_deadline(setup.plan.deck, *surroundings.begin_s);
  }
  code = on_all_ranks(world, [&] {
    if (setup.server == 0) setup.lock = make_run_folder(setup.plan);
    if (setup.server == 0) setup.plan.log_attempt = log_attempt(setup.plan.deck);
  });
  setup.plan.log_attempt = world.all_reduce_max(setup.plan.log_attempt);
  if (code != ExitCode::success) return code;
  if (setup.watchdog != nullptr) {
    setup.watchdog->set_last_word([run = setup.plan.deck.output, rank = world.rank()](const std::string& line) {
      return static_cast<int>(tell_failure(run, rank, line, ""));
    });
  }
  try {
    if (setup.server == 0) describe(setup, world, *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1);
    run_roles(setup, world, node_of_rank, surroundings);
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    // Others may be waiting for this rank in any call: only an abort reaches them.
    const std::string line =
        fmt::format("rank {} ({}): {}", world.rank(), role_name(setup.plan.roles, world.rank()), error.what());
    const ExitCode failure = tell_failure(setup.plan.deck.output, world.rank(), line, surroundings.failure_note);
    setup.enter("MPI_Abort");
    abort_all_ranks(static_cast<int>(failure));
  }
  return ExitCode::success;
}

}  // namespace

ExitCode run_training(const Communicator& world, const Deck& deck, const std::string& deck_text,
                      const RunSurroundings& surroundings) {
  auto setup = std::make_unique<Setup>();
  try {
    return train_with(*setup, world, deck, deck_text, surroundings);
  } catch (const RankLost&) {
    // What a rank was doing still refers to it (RoleLife).
    setup->lock.reset();
    (void)setup.release();
    throw;
  }
}

ExitCode check_training(const Communicator& world, const Deck& deck, const KeyBlame& blame) {
  const std::vector<int> node_of_rank = world.node_of_rank();
  Setup setup;
  const ExitCode code = on_all_ranks(
      world, [&] { prepare(world, node_of_rank, deck, "", setup); }, blame);
  return code == ExitCode::success ? choose_compute(world, node_of_rank, setup, blame) : code;
}

}  // namespace hat
