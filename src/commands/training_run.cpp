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
#include "commands/run_folder.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/comm/backoff.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/comm/emulated_network.hpp"
#include "hat/comm/mailbox.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/commands/generation.hpp"
#include "hat/core/proc.hpp"
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
};

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
  if (deck.resume) {
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

/// The run itself: a window for the parameters, then each rank lives its role.
void run_roles(Setup& setup, const Communicator& world, const std::vector<int>& node_of_rank, RunResult* result) {
  const RunPlan& plan = setup.plan;
  RankTrace trace(plan, world, node_of_rank, setup.server, setup.worker);
  std::optional<EnergyCounter> energy;
  if (is_first_worker_of_node(plan.roles, node_of_rank, setup.worker)) energy.emplace();
  const int64_t before = resident_bytes() - shared_resident_bytes();
  const std::unique_ptr<EmulatedNetwork> network = emulate_network(plan, world);
  const Window window(world, setup.server >= 0 ? plan.slots.window_bytes[static_cast<size_t>(setup.server)] : 0);
  const Communicator workers = world.split(setup.worker >= 0 ? 0 : -1);
  const bool shares = setup.worker >= 0 && plan.pull_sharers(setup.worker) > 1;
  const Communicator sharers = world.split(shares ? plan.pull_group[static_cast<size_t>(setup.worker)] : -1);
  std::optional<NodeSlots> node_slots;
  if (shares) node_slots.emplace(plan, sharers);
  if (network && setup.worker >= 0) workers.charge_transfers_to(*network);
  if (plan.forms_gangs()) {
    setup.plan.links = links_of(plan, world, workers, setup.worker >= 0);
    if (setup.server == 0) describe_links(plan);
  }
  std::unique_ptr<Server> server;
  if (setup.server >= 0) {
    const CheckpointReader* checkpoint = setup.checkpoint ? &*setup.checkpoint : nullptr;
    server = std::make_unique<Server>(plan, setup.server, *setup.dataset, world, window, checkpoint, trace.of_server());
  }
  setup.checkpoint.reset();  // rotation will remove it, which open files would hinder on network file systems
  world.barrier();           // start values are published
  if (setup.worker >= 0) {
    const SampleConfig& sample = plan.deck.sample;
    // Everybody waits for the sample: of a large model it is shorter rather than late.
    const Worker::Sampler sampler = [&](Transformer& model, const ParameterPointers& parameters) {
      return generate_text(model, parameters, setup.dataset->tokenizer(), sample.prompt, sample.tokens,
                           sample.temperature, plan.deck.seed, plan.deck.timeout_s / 4);
    };
    std::function<void()> own_server;
    if (server) own_server = [&] { server->progress(); };
    Worker(plan, setup.worker, *setup.dataset, world, workers, window, node_slots ? &*node_slots : nullptr, own_server,
           sampler, before, trace.of_worker(), energy ? &*energy : nullptr)
        .run();
  }
  Backoff backoff;
  while (server && !server->finished()) {
    if (server->progress()) {
      backoff.reset();
    } else {
      backoff.pause();
    }
  }
  if (result != nullptr && setup.server == 0) *result = server->result();
  // Some say that they are there to one that has ended: while the last checkpoint is written, for instance.
  const auto hears = [&world] {
    bool any = false;
    for (const MailTag tag : {MailTag::to_worker, MailTag::to_server}) {
      while (world.try_receive(static_cast<int>(tag))) any = true;
    }
    return any;
  };
  world.wait_barrier(plan.deck.timeout_s, "the other ranks to end", hears);
  hears();
  trace.write();
  if (setup.server == 0) server->mark_finished();
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

}  // namespace

ExitCode run_training(const Communicator& world, const Deck& deck, const std::string& deck_text, const KeyBlame& blame,
                      RunResult* result, const std::string& failure_note) {
  const std::vector<int> node_of_rank = world.node_of_rank();
  Setup setup;
  const std::string first_deck = world.broadcast(deck_text, 0);
  ExitCode code = on_all_ranks(world, [&] { check_same_deck(world, deck_text, first_deck); });
  if (code == ExitCode::success) code = check_nobody_trains_in(world, deck.output);
  if (code == ExitCode::success && deck.resume) code = recover_run(world, deck.output);
  if (code != ExitCode::success) return code;
  code = on_all_ranks(
      world, [&] { prepare(world, node_of_rank, deck, deck_text, setup); }, blame);
  if (code != ExitCode::success) return code;
  const bool has_ended = setup.server == 0 && is_over(setup.plan);
  if (world.all_reduce_max(has_ended ? 1 : 0) > 0) {
    if (has_ended) {
      fmt::print("{} is finished: its {} {} done, nothing changes; more train.steps continue it\n",
                 setup.plan.deck.output, counted(setup.plan.end_step, "step"), setup.plan.end_step == 1 ? "is" : "are");
    }
    return ExitCode::success;
  }
  code = choose_compute(world, node_of_rank, setup, blame);
  if (code != ExitCode::success) return code;
  code = on_all_ranks(world, [&] {
    if (setup.server == 0) setup.lock = make_run_folder(setup.plan);
    if (setup.server == 0) setup.plan.log_attempt = log_attempt(setup.plan.deck);
  });
  setup.plan.log_attempt = world.all_reduce_max(setup.plan.log_attempt);
  if (code != ExitCode::success) return code;
  try {
    if (setup.server == 0) describe(setup, world, *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1);
    run_roles(setup, world, node_of_rank, result);
  } catch (const std::exception& error) {
    // Others may be waiting for this rank in any call: only an abort reaches them.
    if (may_tell_failure(setup.plan.deck.output, world.rank())) {
      const std::string line =
          fmt::format("rank {} ({}): {}", world.rank(), role_name(setup.plan.roles, world.rank()), error.what());
      fmt::print(stderr, "hat: {}{}\n", line, failure_note);
      std::fflush(stderr);
      note_failure(setup.plan.deck.output, line);
    }
    abort_all_ranks(static_cast<int>(ExitCode::failure));
  }
  return ExitCode::success;
}

ExitCode check_training(const Communicator& world, const Deck& deck, const KeyBlame& blame) {
  const std::vector<int> node_of_rank = world.node_of_rank();
  Setup setup;
  const ExitCode code = on_all_ranks(
      world, [&] { prepare(world, node_of_rank, deck, "", setup); }, blame);
  return code == ExitCode::success ? choose_compute(world, node_of_rank, setup, blame) : code;
}

}  // namespace hat
