#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "commands/run_folder.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using test::TemporaryFolder;

TEST(RunFolder, OneRankTellsWhyARunFailed) {
  constexpr int kRanks = 8;
  const TemporaryFolder run;
  std::ofstream(run / "status.json") << R"({"status": "running"})";
  std::atomic<int> told = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      if (!may_tell_failure(run.path(), rank)) return;
      ++told;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others must wait for this one
      note_failure(run.path(), "the cause");
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(may_tell_failure(run.path(), 0));  // much later
  for (const auto& entry : std::filesystem::directory_iterator(run.path())) {
    EXPECT_EQ(entry.path().filename(), "status.json");
  }
}

TEST(RunFolder, AFailureIsToldWhereTheFolderCannotBeSeen) {
  const TemporaryFolder folder;
  EXPECT_TRUE(may_tell_failure(folder / "elsewhere", 0));
}

}  // namespace
}  // namespace hat
