#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "commands/inspect.hpp"
#include "hat/metrics/account.hpp"
#include "hat/metrics/metrics_file.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using test::TemporaryFolder;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The tables that hat inspect reads, with one row each.
struct Row {
  std::string table;
  std::vector<std::pair<std::string, double>> values;
};

std::vector<Row> sound_rows() {
  Row worker{"step_workers", {{"step", 1}, {"worker", 0}, {"units", 2}, {"tokens", 100}}};
  for (const char* activity : kActivityNames) worker.values.emplace_back(activity, 0.5);
  worker.values.emplace_back("mpi_seconds", 0.1);
  worker.values.emplace_back("barrier_transfer_seconds", 0);
  worker.values.emplace_back("gang_transfer_seconds", 0);
  const Row block{"step_blocks",
                  {{"step", 1},
                   {"block", 0},
                   {"part_pushes", 3},
                   {"staleness_min", 0},
                   {"staleness_median", 1},
                   {"staleness_max", 1},
                   {"version_spread", 1},
                   {"wait_seconds", 0.25},
                   {"barrier", 0},
                   {"sensitivity", kNan},
                   {"pushes", kNan},
                   {"pushes_against", kNan},
                   {"pushes_over_limit", 0}}};
  return {{"steps", {{"step", 1}, {"recomputed", 0}, {"gangs", 2}, {"gang_members", 5}}}, worker, block};
}

/// Of a file with these rows, each as many times, in as many steps.
Inspection inspect(const std::filesystem::path& run, const std::vector<Row>& rows, int steps = 1) {
  std::filesystem::remove(run / "metrics.h5");
  std::vector<MetricsTable> tables;
  for (const Row& row : rows) {
    MetricsTable table{.name = row.table, .meaning = "", .columns = {}};
    for (const auto& [name, value] : row.values) table.columns.push_back({.name = name, .units = "", .meaning = ""});
    tables.push_back(table);
  }
  MetricsFile file(run / "metrics.h5", tables, {"embedding"}, 0);
  for (size_t t = 0; t < rows.size(); ++t) {
    std::vector<double> values;
    for (const auto& [name, value] : rows[t].values) values.push_back(value);
    for (int step = 0; step < steps; ++step) {
      file.add(t, values);
      values.front() += 1;  // the column step
    }
  }
  file.close();
  Inspection result;
  add_accounts(run, result);
  return result;
}

TEST(InspectMetrics, TakesASoundFile) {
  const TemporaryFolder folder;
  const Inspection result = inspect(folder.path(), sound_rows());
  EXPECT_TRUE(result.problems.empty()) << result.problems.front();
  EXPECT_EQ(result.data["measured_steps"], 1);
}

TEST(InspectMetrics, RefusesNonsenseInEveryColumn) {
  const TemporaryFolder folder;
  const std::vector<Row> sound = sound_rows();
  for (size_t t = 0; t < sound.size(); ++t) {
    for (size_t c = t == 0 ? 0 : 1; c < sound[t].values.size(); ++c) {  // other tables' steps are not read
      for (const double nonsense : {kNan, -5.0, -std::numeric_limits<double>::infinity()}) {
        const std::string& name = sound[t].values[c].first;
        const bool may_be_unknown = name == "sensitivity" || name == "pushes" || name == "pushes_against";
        if (std::isnan(nonsense) && may_be_unknown) continue;
        std::vector<Row> rows = sound;
        rows[t].values[c].second = nonsense;
        const Inspection result = inspect(folder.path(), rows);
        ASSERT_EQ(result.problems.size(), 1U) << name << " " << nonsense;
        EXPECT_NE(result.problems.front().find("/" + sound[t].table + "/" + name), std::string::npos)
            << result.problems.front();
      }
    }
  }
}

TEST(InspectMetrics, RefusesCountsThatAreNone) {
  const TemporaryFolder folder;
  for (const double nonsense : {0.5, 1e300, std::numeric_limits<double>::infinity()}) {
    std::vector<Row> rows = sound_rows();
    rows[1].values[2].second = nonsense;
    EXPECT_EQ(inspect(folder.path(), rows).problems.size(), 1U) << nonsense;
  }
}

TEST(InspectMetrics, RefusesCountsWhoseSumIsNone) {
  const TemporaryFolder folder;
  const std::vector<Row> sound = sound_rows();
  EXPECT_TRUE(inspect(folder.path(), sound, 2).problems.empty());
  for (const auto& [t, c] : std::vector<std::pair<size_t, size_t>>{{0, 1}, {1, 2}, {1, 3}, {2, 2}, {2, 12}}) {
    std::vector<Row> rows = sound;
    rows[t].values[c].second = 9007199254740992;  // 2^53
    EXPECT_TRUE(inspect(folder.path(), rows, 1).problems.empty()) << rows[t].values[c].first;
    const Inspection result = inspect(folder.path(), rows, 2);
    ASSERT_EQ(result.problems.size(), 1U) << rows[t].values[c].first;
    EXPECT_NE(result.problems.front().find(rows[t].values[c].first + ": row 1, "), std::string::npos)
        << result.problems.front();
  }
}

}  // namespace
}  // namespace hat
