#include "commands/run_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "commands/all_ranks.hpp"
#include "commands/device_choice.hpp"
#include "commands/machine.hpp"
#include "commands/run_folder.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/core/text.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/device/cuda.hpp"
#include "hat/device/nccl_communicator.hpp"
#include "hat/gradient/shard_size.hpp"

namespace hat {

namespace {

/// Steps that the deck asks for, counted from the beginning of training.
int64_t steps_of(const Deck& deck, DataOrder& order) {
  if (deck.train.steps > 0) return deck.train.steps;
  if (deck.train.tokens > 0) return order.steps_for_tokens(deck.train.tokens);
  return order.steps_for_epochs(deck.train.epochs, [] { return stop_signal() == 0; });
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

/// Precision auto: what the slowest worker needs less time for. Equal bits in every run are promised with
/// `deterministic`, so nothing is measured then; nor where a run is continued, which would become another one.
ExitCode choose_precision(const Communicator& world, RunSetup& setup) {
  RunPlan& plan = setup.plan;
  if (plan.deck.precision != Precision::automatic || plan.deck.deterministic) return ExitCode::success;
  std::optional<Element> before;
  if (plan.deck.resume && world.rank() == 0) before = last_arithmetic(plan.deck.output);
  const std::string kept = world.broadcast(before ? name_of(*before) : "", 0);
  if (!kept.empty()) {
    plan.compute.arithmetic = kept == name_of(Element::bf16) ? Element::bf16 : Element::fp32;
    setup.keeps_arithmetic = true;
    return ExitCode::success;
  }
  const ExitCode code = measure_slowest(world, setup.worker >= 0, plan.deck.model, plan.compute, setup.product_times,
                                        setup.worker >= 0 ? plan.device_of(setup.worker) : 0);
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

}  // namespace

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

int64_t bytes_in_folders(const std::filesystem::path& run, const char* name) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator(run / name, error)) {
    bytes += bytes_of_files(folder.path());
  }
  return bytes;
}

void prepare_run(const Communicator& world, const std::vector<int>& node_of_rank, Deck deck,
                 const std::string& deck_text, RunSetup& setup) {
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
}

ExitCode choose_compute(const Communicator& world, const std::vector<int>& node_of_rank, RunSetup& setup,
                        const KeyBlame& blame) {
  ExitCode code = choose_precision(world, setup);
  if (code != ExitCode::success) return code;
  RunPlan& plan = setup.plan;
  const Machine machine = describe_machine();
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  int64_t share = 0;
  int64_t share_of_device = kNoLimit;
  const auto checked = [&](auto job) { return on_all_ranks(world, job, blame); };
  code = checked([&] {
    setup.units = unit_sizes(*setup.dataset, plan);
    const int node = node_of_rank[static_cast<size_t>(world.rank())];
    share = worker_share(plan, node_of_rank, node, machine.available_bytes);
  });
  if (code != ExitCode::success) return code;
  code = checked([&] {
    if (setup.worker < 0 || plan.compute.device != DeviceKind::cuda) return;
    setup.free_of_device = cuda::free_bytes(plan.device_of(setup.worker));
    share_of_device = device_share(setup);
  });
  if (code != ExitCode::success) return code;
  share = -world.all_reduce_max(-share);  // of the node, and of the device, with the least
  share_of_device = -world.all_reduce_max(-share_of_device);
  plan.nccl_bytes =
      world.all_reduce_max(plan.sums_with_nccl && setup.worker >= 0 ? NcclCommunicator::device_bytes() : 0);
  setup.fewest_cores = -world.all_reduce_max(setup.worker >= 0 ? -machine.cores : -plan.deck.worker.threads);
  return checked([&] {
    const MemoryChoice choice = choose_by_memory(plan, setup.units, share, share_of_device);
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
    plan.largest_batches = largest_batches(plan, setup.units);
    plan.worker_bytes = rank_of_worker_bytes(plan, setup.units, plan.compute.recompute);
    if (plan.compute.device != DeviceKind::cpu) {
      plan.device_bytes = worker_memory(plan, setup.units, plan.compute.recompute).total();
    }
  });
}

}  // namespace hat
