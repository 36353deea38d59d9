#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands/machine.hpp"
#include "hat/comm/backoff.hpp"
#include "hat/comm/communicator.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/comm/roles.hpp"
#include "hat/commands/ceilings.hpp"
#include "hat/commands/commands.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/option_set.hpp"
#include "hat/core/build_info.hpp"
#include "hat/core/text.hpp"
#include "hat/device/cuda.hpp"
#include "hat/device/cuda_driver.hpp"
#include "hat/device/nccl_communicator.hpp"
#include "hat/io/hdf5.hpp"

namespace hat {

namespace {

constexpr int kMeasuredTag = 1;

struct InfoOptions {
  std::string deck;
  int64_t servers = 1;
  Placement placement = Placement::spread;
  bool measure = true;
  bool json = false;
};

/// One block of the page: title and lines.
struct Section {
  std::string title;
  std::vector<std::pair<std::string, nlohmann::ordered_json>> lines;
};

std::string describe_nccl() {
  const std::string version = nccl_version();
  return version.empty() ? "found when this was built; its library is not here" : version;
}

Section describe_build() {
  const BuildInfo& build = build_info();
  Section section{"build", {}};
  section.lines = {{"version", build.version},
                   {"revision", build.revision},
                   {"compiler", build.compiler},
                   {"build type", build.build_type},
                   {"native instructions", build.native},
                   {"sanitizers", build.sanitizers.empty() ? "none" : build.sanitizers},
                   {"matrix products", build.gemm_backend},
                   {"HDF5", hdf5::library_version()},
                   {"CUDA toolkit", build.cuda_found ? build.cuda_version : "not found"},
                   {"NCCL", build.nccl_found ? describe_nccl() : "not found"},
                   {"CUDA kernels", cuda::built_for().empty() ? "not built in" : "for " + cuda::built_for()}};
  return section;
}

Section describe_mpi(int ranks) {
  Section section{"mpi", {{"ranks", ranks}}};
  for (const auto& [name, value] : mpi_description()) section.lines.emplace_back(name, value);
  return section;
}

Section describe_this_machine(const Machine& machine) {
  Section section{"machine", {}};
  section.lines = {{"host", machine.hostname},
                   {"processor", machine.processor},
                   {"vector instructions", machine.vector_instructions},
                   {"cores", machine.cores},
                   {"cores of the machine", machine.cores_here},
                   {"NUMA nodes", machine.numa_nodes},
                   {"memory", fmt::format("{} ({} available)", human_bytes(machine.memory_bytes),
                                          human_bytes(machine.available_bytes))}};
  const CudaDriver driver = probe_cuda_driver();
  section.lines.emplace_back("CUDA driver", driver.version.empty() ? driver.problem : "for CUDA " + driver.version);
  for (size_t i = 0; i < driver.devices.size(); ++i) {
    section.lines.emplace_back(fmt::format("CUDA device {}", i), driver.devices[i]);
  }
  if (driver.devices.empty() && !driver.version.empty()) section.lines.emplace_back("CUDA devices", driver.problem);
  return section;
}

Section describe_roles(const RolePlan& plan, const std::vector<std::string>& hosts) {
  Section section{"roles", {}};
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    section.lines.emplace_back(fmt::format("rank {}", rank),
                               fmt::format("{} on {}", role_name(plan, static_cast<int>(rank)), hosts[rank]));
  }
  return section;
}

double rounded(double value) { return std::round(value * 10.0) / 10.0; }

nlohmann::ordered_json rounded_or_none(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(rounded(*value)) : "none";
}

Section describe_ceilings(int cores) {
  const Ceilings ceilings = measure_ceilings(cores);
  Section section{"measured ceilings", {{"cores", ceilings.cores}}};
  section.lines.insert(section.lines.end(),
                       {{"fp32 multiply-add, one core (GFLOP/s)", rounded(ceilings.fma_one_gflops)},
                        {"fp32 multiply-add, all cores (GFLOP/s)", rounded(ceilings.fma_all_gflops)},
                        {"bf16 multiply-add, one core (GFLOP/s)", rounded_or_none(ceilings.bf16_one_gflops)},
                        {"bf16 multiply-add, all cores (GFLOP/s)", rounded_or_none(ceilings.bf16_all_gflops)},
                        {"matrix product 1024^3, one thread (GFLOP/s)", rounded(ceilings.product_one_gflops)},
                        {"matrix product 1024^3, all cores (GFLOP/s)", rounded(ceilings.product_all_gflops)},
                        {"the same in bf16, one thread (GFLOP/s)", rounded(ceilings.bf16_product_one_gflops)},
                        {"the same in bf16, all cores (GFLOP/s)", rounded(ceilings.bf16_product_all_gflops)},
                        {"memory copy, all cores (GB/s)", rounded(ceilings.copy_gbytes_s)},
                        {"memory triad, all cores (GB/s)", rounded(ceilings.triad_gbytes_s)}});
  return section;
}

void print_page(const std::vector<Section>& sections, bool as_json) {
  if (as_json) {
    nlohmann::ordered_json page;
    for (const Section& section : sections) {
      nlohmann::ordered_json& object = page[section.title] = nlohmann::ordered_json::object();
      for (const auto& [name, value] : section.lines) object[name] = value;
    }
    fmt::print("{}\n", page.dump(2));
    return;
  }
  for (const Section& section : sections) {
    fmt::print("{}{}\n", &section == &sections.front() ? "" : "\n", section.title);
    for (const auto& [name, value] : section.lines) {
      fmt::print("  {:<44}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

/// The other ranks sleep while rank 0 measures: ranks that poll inside MPI would take its cores.
void wait_for_rank_0(const Communicator& world) {
  Backoff backoff;
  while (!world.try_receive(kMeasuredTag)) backoff.pause();
}

void release_others(const Communicator& world) {
  const std::byte token{};
  for (int rank = 1; rank < world.size(); ++rank) world.start_send({&token, 1}, rank, kMeasuredTag).wait();
}

ExitCode info(OptionSet& keys, const InfoOptions& options) {
  keys.load(options.deck.empty() ? std::nullopt : std::optional<std::filesystem::path>(options.deck));
  const MpiEnvironment mpi;
  refuse_accidental_singleton();
  const Communicator world = Communicator::world();
  const Machine machine = describe_machine();
  const RolePlan plan =
      keys.naming_places([&] { return plan_roles(world.node_of_rank(), options.servers, options.placement); });
  const std::vector<std::string> hosts = world.all_gather(machine.hostname);
  if (world.rank() != 0) {
    wait_for_rank_0(world);
    return ExitCode::success;
  }
  std::vector<Section> sections{describe_build(), describe_mpi(world.size()), describe_roles(plan, hosts),
                                describe_this_machine(machine)};
  if (options.measure) sections.push_back(describe_ceilings(machine.cores));
  print_page(sections, options.json);
  release_others(world);
  return ExitCode::success;
}

}  // namespace

CommandBody add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "What was built in, where it runs, what this machine can do");
  command->footer(
      "Examples: hat info\n"
      "          mpirun -n 3 hat info inputs/quickstart.toml   (which rank would do what)\n"
      "The page to paste into a bug report.");
  auto options = std::make_shared<InfoOptions>();
  auto keys = std::make_shared<OptionSet>(*command);
  command->add_option("deck", options->deck, "Deck to take `servers` and `servers.placement` from");
  keys->add("servers", options->servers, "Ranks that own parameters")->check(integer_in(1, 65536));
  keys->add_named<Placement>(
      "servers.placement", options->placement,
      {{"spread", Placement::spread}, {"packed", Placement::packed}, {"dedicated", Placement::dedicated}},
      "Where the servers are");
  command->add_flag("--measure,!--no-measure", options->measure, "Measure the ceilings (about three seconds)")
      ->check(true_or_false());
  command->add_flag("--json", options->json, "Print a JSON object")->check(true_or_false());
  return [keys, options] { return info(*keys, *options); };
}

}  // namespace hat
