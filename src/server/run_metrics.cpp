#include "server/run_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "hat/metrics/account.hpp"

namespace hat {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

enum Table : size_t { steps, step_workers, step_blocks, workers };

MetricsColumn integer(const char* name, const char* units, const char* meaning) {
  return {.name = name, .kind = MetricsColumn::Kind::integer, .units = units, .meaning = meaning};
}
MetricsColumn real(const char* name, const char* units, const char* meaning) {
  return {.name = name, .kind = MetricsColumn::Kind::real, .units = units, .meaning = meaning};
}

MetricsColumn step_column() { return integer("step", "steps", "steps done, this one included"); }

void add_account_columns(std::vector<MetricsColumn>& columns) {
  for (const char* name : kActivityNames) columns.push_back(real(name, "s", "time charged to this activity"));
  columns.push_back(real("mpi_seconds", "s", "of other: MPI calls inside passes"));
  columns.push_back(real("barrier_transfer_seconds", "s", "of wait_barrier: estimate of the transfers of rings"));
  columns.push_back(real("gang_transfer_seconds", "s", "of wait_gang: estimate of the transfers"));
}

void add_account(std::vector<double>& row, const AccountReading& account) {
  for (size_t a = 0; a < kActivities; ++a) row.push_back(a < account.seconds.size() ? account.seconds[a] : 0.0);
  row.push_back(account.mpi_seconds);
  row.push_back(account.barrier_transfer_seconds);
  row.push_back(account.gang_transfer_seconds);
}

std::vector<MetricsTable> tables() {
  MetricsTable by_step{.name = "steps", .meaning = "one row per step", .columns = {}};
  by_step.columns = {step_column(),
                     integer("epoch", "1", "epoch of the step's data, from 0"),
                     real("loss", "nat/token", "training loss, mean over target tokens"),
                     integer("tokens", "tokens", "target tokens"),
                     real("norm", "1", "norm of the mean gradient before clipping; NaN in unbounded training"),
                     real("learning_rate", "1", "of adamw or sgd"),
                     real("seconds", "s", "since the start of this process when the step was committed"),
                     integer("recomputed", "1", "times that units were computed again (staleness.over_limit)"),
                     integer("gangs", "1", "sequences that several workers computed at once"),
                     integer("gang_members", "1", "ranges of those")};
  MetricsTable by_worker{.name = "step_workers", .meaning = "one row per step and worker", .columns = {}};
  by_worker.columns = {step_column(), integer("worker", "1", "number of the worker"),
                       integer("units", "1", "units of the step that it computed"),
                       integer("tokens", "tokens", "target tokens of those")};
  add_account_columns(by_worker.columns);
  MetricsTable by_block{.name = "step_blocks", .meaning = "one row per step and block", .columns = {}};
  by_block.columns = {
      step_column(),
      integer("block", "1", "place in /blocks"),
      integer("part_pushes", "1", "pushes applied to all parts of the block"),
      real("staleness_min", "versions", "of a push when it was applied"),
      real("staleness_median", "versions", "the lower of two middle ones"),
      real("staleness_max", "versions", ""),
      real("version_spread", "versions", "newest minus oldest version that gradients were computed on"),
      real("wait_seconds", "s", "all workers waited for the block at its first use"),
      integer("barrier", "1", "1: reduced by all workers together, 0: not"),
      real("sensitivity", "1", "by the deck's sensitivity.measure; NaN where none is recorded or defined"),
      real("pushes", "1", "gradients that left workers, into rings too; NaN where no sketches are recorded"),
      real("pushes_against", "1", "of those: against the sum of the step's others; NaN likewise"),
      integer("pushes_over_limit", "1", "pushes over the staleness limit")};
  MetricsTable by_life{.name = "workers", .meaning = "one row per worker, at its goodbye", .columns = {}};
  by_life.columns = {step_column(), integer("worker", "1", "number of the worker"),
                     integer("units", "1", "units computed"), integer("tokens", "tokens", "target tokens of those"),
                     real("wall_seconds", "s", "from its first lease request to its goodbye")};
  add_account_columns(by_life.columns);
  by_life.columns.push_back(real("utilization", "1", "compute / sum of all activities"));
  by_life.columns.push_back(real("communication_share", "1",
                                 "(wait_pull + push_blocked + barrier_transfer_seconds + gang_transfer_seconds + "
                                 "mpi_seconds) / the same sum"));
  return {by_step, by_worker, by_block, by_life};
}

std::vector<std::string> block_names(const RunPlan& plan) {
  std::vector<std::string> names;
  for (const BlockSpec& block : plan.layout.blocks) names.push_back(block.name);
  return names;
}

double median(const std::map<int64_t, int64_t>& counts) {
  int64_t all = 0;
  for (const auto& [value, count] : counts) all += count;
  int64_t below = 0;
  for (const auto& [value, count] : counts) {
    below += count;
    if (2 * below >= all) return static_cast<double>(value);
  }
  return kUnknown;
}

}  // namespace

RunMetrics::RunMetrics(const RunPlan& plan)
    : plan_(plan),
      last_reading_(static_cast<size_t>(plan.roles.workers())),
      end_step_(plan.end_step),
      file_(std::filesystem::path(plan.deck.output) / "metrics.h5", tables(), block_names(plan), plan.first_step) {}

void RunMetrics::unit(const UnitReport& report) {
  AccountReading& last = last_reading_.at(static_cast<size_t>(report.worker));
  const AccountReading passed = difference(report.account, last);
  last = report.account;
  WorkerStep& done = open_[report.step].workers[report.worker];
  ++done.units;
  done.tokens += report.tokens;
  hat::add(done.time, passed);
  hat::add(interval_, passed);
}

void RunMetrics::server_completed(const StepComplete& message) {
  std::map<int64_t, BlockStep>& blocks = open_[message.step].blocks;
  for (const BaseVersions& versions : message.base_versions) {
    const auto [entry, first] = blocks.try_emplace(
        versions.block, BlockStep{.pushes = {}, .oldest_version = versions.oldest, .newest_version = versions.newest});
    entry->second.oldest_version = std::min(entry->second.oldest_version, versions.oldest);
    entry->second.newest_version = std::max(entry->second.newest_version, versions.newest);
  }
  for (const BlockStaleness& count : message.block_staleness) blocks[count.block].pushes[count.late] += count.pushes;
}

void RunMetrics::step(const StepResult& result, double learning_rate, double norm, double seconds,
                      const StepBlocks& blocks) {
  const int64_t done = result.step + 1;
  const auto value = [](int64_t number) { return static_cast<double>(number); };
  const double loss = result.tokens > 0 ? result.nats / value(result.tokens) : kUnknown;
  file_.add(steps,
            std::vector<double>{value(done), value(result.epoch), loss, value(result.tokens), norm, learning_rate,
                                seconds, value(blocks.recomputed), value(result.gangs), value(result.gang_members)});
  OpenStep open = std::move(open_[result.step]);
  open_.erase(result.step);
  add_worker_rows(done, open);
  add_block_rows(done, open, blocks);
  file_.save_if_due();
}

void RunMetrics::add_worker_rows(int64_t steps_done, OpenStep& open) {
  for (int64_t worker = 0; worker < plan_.roles.workers(); ++worker) {
    const WorkerStep& did = open.workers[worker];
    std::vector<double> row{static_cast<double>(steps_done), static_cast<double>(worker),
                            static_cast<double>(did.units), static_cast<double>(did.tokens)};
    add_account(row, did.time);
    file_.add(step_workers, row);
  }
}

void RunMetrics::add_block_rows(int64_t steps_done, OpenStep& open, const StepBlocks& blocks) {
  const std::vector<bool>& is_barrier = blocks.is_barrier.empty() ? plan_.is_barrier : blocks.is_barrier;
  const auto recorded = [](const std::vector<int64_t>& counts, size_t block) {
    return block < counts.size() ? static_cast<double>(counts[block]) : kUnknown;
  };
  for (size_t block = 0; block < plan_.layout.blocks.size(); ++block) {
    const auto number = static_cast<int64_t>(block);
    const BlockStep& at = open.blocks[number];
    int64_t pushes = 0;
    for (const auto& [late, count] : at.pushes) pushes += count;
    double waited = 0;
    for (const auto& [worker, did] : open.workers) {
      if (block < did.time.block_wait_seconds.size()) waited += did.time.block_wait_seconds[block];
    }
    const bool any = !at.pushes.empty();
    file_.add(step_blocks,
              std::vector<double>{
                  static_cast<double>(steps_done), static_cast<double>(number), static_cast<double>(pushes),
                  any ? static_cast<double>(at.pushes.begin()->first) : kUnknown, median(at.pushes),
                  any ? static_cast<double>(at.pushes.rbegin()->first) : kUnknown,
                  any ? static_cast<double>(at.newest_version - at.oldest_version) : kUnknown, waited,
                  is_barrier[block] ? 1.0 : 0.0,
                  block < blocks.sensitivity.size() ? chosen_measure(plan_.deck.sensitivity, blocks.sensitivity[block])
                                                    : kUnknown,
                  recorded(blocks.pushes, block), recorded(blocks.pushes_against, block),
                  static_cast<double>(blocks.pushes_over_limit.at(block))});
  }
}

void RunMetrics::worker(const WorkerSummary& summary) {
  AccountReading& last = last_reading_.at(static_cast<size_t>(summary.worker));
  const AccountReading passed = difference(summary.account, last);
  last = summary.account;
  hat::add(interval_, passed);
  std::vector<double> end{static_cast<double>(end_step_), static_cast<double>(summary.worker), 0, 0};
  add_account(end, passed);
  file_.add(step_workers, end);
  std::vector<double> row{static_cast<double>(end_step_), static_cast<double>(summary.worker),
                          static_cast<double>(summary.units), static_cast<double>(summary.tokens),
                          summary.wall_seconds};
  add_account(row, summary.account);
  row.push_back(utilization(summary.account));
  row.push_back(communication_share(summary.account));
  file_.add(workers, row);
}

AccountReading RunMetrics::take_interval() { return std::exchange(interval_, {}); }

}  // namespace hat
