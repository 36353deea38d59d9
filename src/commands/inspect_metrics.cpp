#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "commands/inspect.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/metrics/account.hpp"
#include "hat/metrics/metrics_file.hpp"

namespace hat {

namespace fs = std::filesystem;

namespace {

struct WorkerTotal {
  AccountReading account;
  int64_t units = 0;
  int64_t tokens = 0;
};

/// Of one block over all steps. Steps in which it had no push tell nothing of staleness.
struct BlockTotal {
  int64_t steps = 0;
  int64_t barrier_steps = 0;
  int64_t part_pushes = 0;
  bool has_pushes = false;  // sketches were recorded, in some steps
  int64_t pushes = 0;       // in those
  int64_t pushes_against = 0;
  int64_t pushes_over_limit = 0;
  double staleness_min = std::numeric_limits<double>::infinity();
  double staleness_max = -std::numeric_limits<double>::infinity();
  std::vector<double> medians;  // of steps
  double version_spread = 0;
  double wait_seconds = 0;
  double sensitivity = std::numeric_limits<double>::quiet_NaN();  // the newest
};

std::map<int64_t, WorkerTotal> worker_totals(const hdf5::File& file) {
  const MetricsTableReader table(file, "step_workers");
  const std::vector<double> worker = table.column("worker");
  const std::vector<double> units = table.column("units");
  const std::vector<double> tokens = table.column("tokens");
  const std::vector<double> mpi = table.column("mpi_seconds");
  const std::vector<double> transfer = table.column("barrier_transfer_seconds");
  std::vector<std::vector<double>> seconds;
  seconds.reserve(kActivities);
  for (const char* name : kActivityNames) seconds.push_back(table.column(name));
  std::map<int64_t, WorkerTotal> totals;
  for (size_t row = 0; row < worker.size(); ++row) {
    WorkerTotal& total = totals[static_cast<int64_t>(worker[row])];
    AccountReading passed{.mpi_seconds = mpi[row], .barrier_transfer_seconds = transfer[row]};
    for (const std::vector<double>& activity : seconds) passed.seconds.push_back(activity[row]);
    add(total.account, passed);
    total.units += static_cast<int64_t>(units[row]);
    total.tokens += static_cast<int64_t>(tokens[row]);
  }
  return totals;
}

std::vector<BlockTotal> block_totals(const hdf5::File& file, const std::vector<std::string>& names) {
  const MetricsTableReader table(file, "step_blocks");
  const std::vector<double> block = table.column("block");
  const std::vector<double> part_pushes = table.column("part_pushes");
  const std::vector<double> pushes = table.column("pushes");
  const std::vector<double> against = table.column("pushes_against");
  const std::vector<double> over_limit = table.column("pushes_over_limit");
  const std::vector<double> least = table.column("staleness_min");
  const std::vector<double> middle = table.column("staleness_median");
  const std::vector<double> most = table.column("staleness_max");
  const std::vector<double> spread = table.column("version_spread");
  const std::vector<double> waited = table.column("wait_seconds");
  const std::vector<double> barrier = table.column("barrier");
  const std::vector<double> sensitivity = table.column("sensitivity");
  std::vector<BlockTotal> totals(names.size());
  for (size_t row = 0; row < block.size(); ++row) {
    if (block[row] < 0 || block[row] >= static_cast<double>(names.size())) {
      throw InputError(file.path(), "/step_blocks/block",
                       fmt::format("row {} is {}, there are {} blocks", row, block[row], names.size()));
    }
    BlockTotal& total = totals[static_cast<size_t>(block[row])];
    ++total.steps;
    total.wait_seconds += waited[row];
    if (barrier[row] > 0) ++total.barrier_steps;
    if (!std::isnan(sensitivity[row])) total.sensitivity = sensitivity[row];
    if (!std::isnan(pushes[row])) {
      total.has_pushes = true;
      total.pushes += static_cast<int64_t>(pushes[row]);
      total.pushes_against += static_cast<int64_t>(against[row]);
    }
    total.pushes_over_limit += static_cast<int64_t>(over_limit[row]);
    if (part_pushes[row] == 0) continue;
    total.part_pushes += static_cast<int64_t>(part_pushes[row]);
    total.staleness_min = std::min(total.staleness_min, least[row]);
    total.staleness_max = std::max(total.staleness_max, most[row]);
    total.medians.push_back(middle[row]);
    total.version_spread = std::max(total.version_spread, spread[row]);
  }
  return totals;
}

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string account_row(const std::string& who, const WorkerTotal& total) {
  std::string row = fmt::format("    {:<8}{:>13.1f}{:>15.1f}", who, 100 * utilization(total.account),
                                100 * communication_share(total.account));
  for (size_t a = 1; a < kActivities; ++a) {  // compute is the utilization
    row += fmt::format("{:>14.1f}", 100 * total.account.seconds[a] / wall_seconds(total.account));
  }
  return row +
         fmt::format("{:>12}{:>10}{:>12.1f}\n", with_commas(total.tokens), total.units, wall_seconds(total.account));
}

nlohmann::json account_json(const WorkerTotal& total) {
  nlohmann::json seconds;
  for (size_t a = 0; a < kActivities; ++a) seconds[kActivityNames[a]] = total.account.seconds[a];
  return {{"utilization", utilization(total.account)},
          {"communication_share", communication_share(total.account)},
          {"seconds", seconds},
          {"mpi_seconds", total.account.mpi_seconds},
          {"barrier_transfer_seconds", total.account.barrier_transfer_seconds},
          {"units", total.units},
          {"tokens", total.tokens}};
}

void add_workers(const std::map<int64_t, WorkerTotal>& workers, Inspection& result) {
  result.text += fmt::format("    {:<8}{:>13}{:>15}", "worker", "utilization", "communication");
  for (size_t a = 1; a < kActivities; ++a) result.text += fmt::format("{:>14}", kActivityNames[a]);
  result.text += fmt::format("{:>12}{:>10}{:>12}\n", "tokens", "units", "seconds");
  WorkerTotal all;
  result.data["workers"] = nlohmann::json::array();
  for (const auto& [worker, total] : workers) {
    if (wall_seconds(total.account) <= 0) continue;  // has not reported yet
    result.text += account_row(std::to_string(worker), total);
    nlohmann::json entry = account_json(total);
    entry["worker"] = worker;
    result.data["workers"].push_back(entry);
    add(all.account, total.account);
    all.units += total.units;
    all.tokens += total.tokens;
  }
  if (wall_seconds(all.account) <= 0) return;
  result.text += account_row("all", all);
  result.data["all_workers"] = account_json(all);
}

void add_blocks(const std::vector<std::string>& names, const std::vector<BlockTotal>& blocks, Inspection& result) {
  result.text += fmt::format("    {:<24}{:>12}{:>24}{:>8}{:>12}{:>10}{:>13}{:>18}{:>12}\n", "block", "part pushes",
                             "staleness min/med/max", "spread", "waited, s", "barrier", "sensitivity",
                             "against / pushes", "over limit");
  result.data["blocks"] = nlohmann::json::array();
  for (size_t b = 0; b < blocks.size(); ++b) {
    const BlockTotal& block = blocks[b];
    nlohmann::json entry{{"block", names[b]},
                         {"steps", block.steps},
                         {"part_pushes", block.part_pushes},
                         {"wait_seconds", block.wait_seconds},
                         {"staleness", nullptr},
                         {"version_spread", block.version_spread},
                         {"sensitivity", nullptr},
                         {"barrier_steps", block.barrier_steps},
                         {"pushes", nullptr},
                         {"pushes_against", nullptr},
                         {"pushes_over_limit", block.pushes_over_limit}};
    std::string staleness = "-";
    if (block.part_pushes > 0) {
      const double median = lower_median(block.medians);
      staleness = fmt::format("{:.0f} / {:.0f} / {:.0f}", block.staleness_min, median, block.staleness_max);
      entry["staleness"] = {
          {"min", block.staleness_min}, {"median_of_step_medians", median}, {"max", block.staleness_max}};
    }
    if (!std::isnan(block.sensitivity)) entry["sensitivity"] = block.sensitivity;
    std::string against = "-";
    if (block.has_pushes) {
      against = fmt::format("{} / {}", with_commas(block.pushes_against), with_commas(block.pushes));
      entry["pushes"] = block.pushes;
      entry["pushes_against"] = block.pushes_against;
    }
    const std::string barrier = block.barrier_steps == 0             ? "no"
                                : block.barrier_steps == block.steps ? "yes"
                                                                     : fmt::format("{} steps", block.barrier_steps);
    result.text += fmt::format("    {:<24}{:>12}{:>24}{:>8.0f}{:>12.2f}{:>10}{:>13}{:>18}{:>12}\n", names[b],
                               with_commas(block.part_pushes), staleness, block.version_spread, block.wait_seconds,
                               barrier, std::isnan(block.sensitivity) ? "-" : fmt::format("{:.3g}", block.sensitivity),
                               against, with_commas(block.pushes_over_limit));
    result.data["blocks"].push_back(entry);
  }
}

/// "51 to 100, 151": steps up to the last one that have no row (FORMAT.md tells when that happens).
void add_gaps(const std::vector<double>& steps, Inspection& result) {
  std::string gaps;
  result.data["missing_steps"] = nlohmann::json::array();
  int64_t expected = 1;
  for (const double value : steps) {
    const auto step = static_cast<int64_t>(value);
    if (step > expected) {
      const int64_t last = step - 1;
      gaps += last > expected ? fmt::format(", {} to {}", expected, last) : fmt::format(", {}", last);
      result.data["missing_steps"].push_back({{"first", expected}, {"last", last}});
    }
    expected = step + 1;
  }
  if (!gaps.empty()) result.text += fmt::format("    without the steps {}, which were not saved\n", gaps.substr(2));
}

}  // namespace

void add_accounts(const fs::path& run, Inspection& result) {
  const fs::path path = run / "metrics.h5";
  result.data["measured_steps"] = nullptr;
  if (!fs::exists(path)) {
    result.text += "  no metrics.h5\n";
    return;
  }
  try {
    const hdf5::File file = open_metrics(path);
    const std::vector<std::string> names = file.root().read_strings("blocks");
    const MetricsTableReader by_step(file, "steps");
    const int64_t steps = by_step.rows();
    const std::vector<double> recomputed = by_step.column("recomputed");
    const std::map<int64_t, WorkerTotal> workers = worker_totals(file);
    const std::vector<BlockTotal> blocks = block_totals(file, names);
    result.data["measured_steps"] = steps;
    result.text += fmt::format(
        "  metrics.h5  {} steps; time of each worker in %, blocks over all steps (med: the median of the steps' "
        "medians)\n",
        steps);
    add_gaps(by_step.column("step"), result);
    result.data["recomputed"] = static_cast<int64_t>(std::accumulate(recomputed.begin(), recomputed.end(), 0.0));
    if (steps == 0) return;
    add_workers(workers, result);
    add_blocks(names, blocks, result);
    if (result.data["recomputed"] > 0) {
      result.text += fmt::format("    units computed again: {}\n", result.data["recomputed"].get<int64_t>());
    }
  } catch (const InputError& error) {
    result.problems.emplace_back(error.what());
  }
}

}  // namespace hat
