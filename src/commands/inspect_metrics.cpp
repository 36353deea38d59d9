#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
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

/// What a sound file has in a column. A metrics.h5 may be anybody's.
enum class Sound {
  count,             ///< whole numbers from 0, which a double holds exactly
  tally,             ///< counts that are added up, so that a double holds even the sum of the column
  tally_or_unknown,  ///< or NaN
  amount,            ///< numbers from 0 (differences of sums: up to rounding)
  amount_or_unknown,
};

constexpr double kMostCount = 9007199254740992;  // 2^53

bool is_tally(Sound sound) { return sound == Sound::tally || sound == Sound::tally_or_unknown; }

std::string problem_of(double value, Sound sound) {
  constexpr double kRounding = 1e-6;
  const bool is_count = sound == Sound::count || is_tally(sound);
  const bool may_be_unknown = sound == Sound::tally_or_unknown || sound == Sound::amount_or_unknown;
  if (std::isnan(value) && may_be_unknown) return {};
  if (is_count && !(value >= 0 && value <= kMostCount && value == std::floor(value))) return "is no count";
  if (!std::isfinite(value)) return "is not a finite number";
  return value < -kRounding ? "is negative" : "";
}

/// A column of a table of `file`. Throws InputError naming the first row that is no sound one, or too much with those
/// before.
std::vector<double> column(const hdf5::File& file, const std::string& table, const std::string& name, Sound sound) {
  std::vector<double> values = MetricsTableReader(file, table).column(name);
  double sum = 0;
  for (size_t row = 0; row < values.size(); ++row) {
    std::string problem = problem_of(values[row], sound);
    if (problem.empty() && is_tally(sound) && !std::isnan(values[row])) {
      sum += values[row];
      if (sum > kMostCount) problem = "is too much: all rows together are no count";
    }
    if (problem.empty()) continue;
    throw InputError(file.path(), fmt::format("/{}/{}", table, name),
                     fmt::format("row {}, {}, {}", row, values[row], problem));
  }
  return values;
}

std::map<int64_t, WorkerTotal> worker_totals(const hdf5::File& file) {
  const auto of = [&file](const char* name, Sound sound) { return column(file, "step_workers", name, sound); };
  const std::vector<double> worker = of("worker", Sound::count);
  const std::vector<double> units = of("units", Sound::tally);
  const std::vector<double> tokens = of("tokens", Sound::tally);
  const std::vector<double> mpi = of("mpi_seconds", Sound::amount);
  const std::vector<double> transfer = of("barrier_transfer_seconds", Sound::amount);
  const std::vector<double> in_gangs = of("gang_transfer_seconds", Sound::amount);
  std::vector<std::vector<double>> seconds;
  seconds.reserve(kActivities);
  for (const char* name : kActivityNames) seconds.push_back(of(name, Sound::amount));
  std::map<int64_t, WorkerTotal> totals;
  for (size_t row = 0; row < worker.size(); ++row) {
    WorkerTotal& total = totals[static_cast<int64_t>(worker[row])];
    AccountReading passed{
        .mpi_seconds = mpi[row], .barrier_transfer_seconds = transfer[row], .gang_transfer_seconds = in_gangs[row]};
    for (const std::vector<double>& activity : seconds) passed.seconds.push_back(activity[row]);
    add(total.account, passed);
    total.units += static_cast<int64_t>(units[row]);
    total.tokens += static_cast<int64_t>(tokens[row]);
  }
  return totals;
}

std::vector<BlockTotal> block_totals(const hdf5::File& file, const std::vector<std::string>& names) {
  const auto of = [&file](const char* name, Sound sound) { return column(file, "step_blocks", name, sound); };
  const std::vector<double> block = of("block", Sound::count);
  const std::vector<double> part_pushes = of("part_pushes", Sound::tally);
  const std::vector<double> pushes = of("pushes", Sound::tally_or_unknown);
  const std::vector<double> against = of("pushes_against", Sound::tally_or_unknown);
  const std::vector<double> over_limit = of("pushes_over_limit", Sound::tally);
  const std::vector<double> least = of("staleness_min", Sound::amount_or_unknown);
  const std::vector<double> middle = of("staleness_median", Sound::amount_or_unknown);
  const std::vector<double> most = of("staleness_max", Sound::amount_or_unknown);
  const std::vector<double> spread = of("version_spread", Sound::amount_or_unknown);
  const std::vector<double> waited = of("wait_seconds", Sound::amount);
  const std::vector<double> barrier = of("barrier", Sound::count);
  const std::vector<double> sensitivity = of("sensitivity", Sound::amount_or_unknown);
  std::vector<BlockTotal> totals(names.size());
  for (size_t row = 0; row < block.size(); ++row) {
    const auto refuse_unknown = [&](const char* name, const std::vector<double>& values) {
      if (!std::isnan(values[row])) return;
      throw InputError(file.path(), fmt::format("/step_blocks/{}", name),
                       fmt::format("row {} is unknown, though there were pushes", row));
    };
    if (block[row] >= static_cast<double>(names.size())) {
      throw InputError(file.path(), "/step_blocks/block",
                       fmt::format("row {} is {}, there are {} blocks", row, block[row], names.size()));
    }
    BlockTotal& total = totals[static_cast<size_t>(block[row])];
    ++total.steps;
    total.wait_seconds += waited[row];
    if (barrier[row] > 0) ++total.barrier_steps;
    if (!std::isnan(sensitivity[row])) total.sensitivity = sensitivity[row];
    if (!std::isnan(pushes[row])) {
      refuse_unknown("pushes_against", against);
      total.has_pushes = true;
      total.pushes += static_cast<int64_t>(pushes[row]);
      total.pushes_against += static_cast<int64_t>(against[row]);
    }
    total.pushes_over_limit += static_cast<int64_t>(over_limit[row]);
    if (part_pushes[row] == 0) continue;
    refuse_unknown("staleness_min", least);
    refuse_unknown("staleness_median", middle);
    refuse_unknown("staleness_max", most);
    refuse_unknown("version_spread", spread);
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
          {"gang_transfer_seconds", total.account.gang_transfer_seconds},
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
                                                                     : counted(block.barrier_steps, "step");
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
    const std::vector<double> step = column(file, "steps", "step", Sound::count);
    const auto steps = static_cast<int64_t>(step.size());
    if (std::adjacent_find(step.begin(), step.end(), std::greater_equal<>()) != step.end()) {
      throw InputError(file.path(), "/steps/step", "the steps do not ascend");
    }
    const auto sum_of = [&file](const char* name) {
      const std::vector<double> values = column(file, "steps", name, Sound::tally);
      return static_cast<int64_t>(std::accumulate(values.begin(), values.end(), 0.0));
    };
    for (const char* name : {"recomputed", "gangs", "gang_members"}) result.data[name] = sum_of(name);
    const std::map<int64_t, WorkerTotal> workers = worker_totals(file);
    const std::vector<BlockTotal> blocks = block_totals(file, names);
    result.data["measured_steps"] = steps;
    result.text += fmt::format(
        "  metrics.h5  {}; time of each worker in %, blocks over all steps (med: the median of the steps' medians)\n",
        counted(steps, "step"));
    add_gaps(step, result);
    if (steps == 0) return;
    add_workers(workers, result);
    add_blocks(names, blocks, result);
    if (result.data["recomputed"] > 0) {
      result.text += fmt::format("    units computed again: {}\n", result.data["recomputed"].get<int64_t>());
    }
    const auto gangs = result.data["gangs"].get<int64_t>();
    if (gangs > 0) {
      result.text +=
          fmt::format("    sequences computed by several workers: {}, by {:.1f} on average\n", with_commas(gangs),
                      result.data["gang_members"].get<double>() / static_cast<double>(gangs));
    }
  } catch (const InputError& error) {
    result.problems.emplace_back(error.what());
  }
}

}  // namespace hat
