#include "commands/run_description.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "commands/delay_text.hpp"
#include "commands/run_deadline.hpp"
#include "hat/core/text.hpp"
#include "hat/model/charged_cost.hpp"

namespace hat {

namespace {

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

void describe_compute(const RunSetup& setup) {
  const RunPlan& plan = setup.plan;
  const ComputeOptions& compute = plan.compute;
  std::string why;
  if (setup.product_times.fp32_s > 0) {
    why = fmt::format(" (auto: the model's matrix products take {:.2f} times as long in fp32 as in bf16 here)",
                      setup.product_times.fp32_s / setup.product_times.bf16_s);
  } else if (setup.keeps_arithmetic) {
    why = " (auto: as before in this run)";
  }
  fmt::print("device: {}\n", setup.devices);
  if (!setup.rings.empty()) fmt::print("rings: {}\n", setup.rings);
  fmt::print("precision: {}{}{}; pulls in {}; {} thread{} a worker\n", name_of(compute.arithmetic),
             compute.tf32 ? " (products in TF32)" : "", why, name_of(plan.deck.pull_format), compute.threads,
             compute.threads == 1 ? "" : "s");
  if (setup.fewest_cores < compute.threads) {
    fmt::print(
        "warning: worker.threads = {}, but a worker is bound to {} core{}; mpirun --map-by slot:PE={} (or --bind-to "
        "none) gives it more\n",
        compute.threads, setup.fewest_cores, setup.fewest_cores == 1 ? "" : "s", compute.threads);
  }
  const WorkerMemory worker = worker_memory(plan, setup.units, compute.recompute);
  int64_t server = 0;
  for (int s = 0; s < plan.roles.servers(); ++s) server = std::max(server, server_memory(plan, s).total());
  const std::string beside = worker.on_device ? fmt::format(", libraries {}) of its device and {} of the host",
                                                            gib(worker.libraries), gib(worker.on_host()))
                                              : ")";
  fmt::print(
      "memory: a worker {} (parameters {}, gradients {}, activations {} for units of up to {} tokens, recompute "
      "{}{}, a server {}\n",
      gib(worker.total()), worker.parameters > 0 ? gib(worker.parameters) : "in the server's slots",
      gib(worker.gradients), gib(worker.activations), with_commas(setup.units.tokens), name_of(compute.recompute),
      beside, gib(server));
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

}  // namespace

void describe_run(const RunSetup& setup, int ranks, int nodes) {
  const RunPlan& plan = setup.plan;
  const Deck& deck = plan.deck;
  std::string barriers = names_of_barriers(plan);
  const std::string staleness = plan.unbounded() ? "unbounded" : std::to_string(deck.staleness);
  fmt::print("ranks: {} ({}, {}) on {}\n", ranks, counted(plan.roles.servers(), "server"),
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
             plan.deck.gang.policy == SplitPolicy::automatic
                 ? " where that ends a step earlier (steps without are tried, too)"
                 : "",
             links);
  std::fflush(stdout);
}

}  // namespace hat
