#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hat/core/background_thread.hpp"
#include "hat/metrics/line_file.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

/// A job that waits until it is told to go on: what is queued behind it stays queued.
class Gate {
 public:
  std::shared_future<void> opened() const { return opened_; }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(BackgroundThread, RunsJobsInTheirOrderOnOneOtherThread) {
  constexpr int kJobs = 1000;
  std::vector<int> order;  // unprotected: touched by the one thread, then here
  std::vector<std::thread::id> ids;
  {
    BackgroundThread thread;
    for (int i = 0; i < kJobs; ++i) {
      thread.submit([&, i] {
        order.push_back(i);
        ids.push_back(std::this_thread::get_id());
      });
    }
  }
  ASSERT_EQ(order.size(), static_cast<size_t>(kJobs));
  for (int i = 0; i < kJobs; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_NE(ids.front(), std::this_thread::get_id());
  for (const std::thread::id id : ids) EXPECT_EQ(id, ids.front());
}

TEST(BackgroundThread, FuturesCarryResultsAndTellWhenTheyAreThere) {
  Gate gate;
  BackgroundThread thread;
  std::future<int> blocked = thread.submit([opened = gate.opened()] {
    opened.wait();
    return 7;
  });
  std::future<std::unique_ptr<int>> second = thread.submit([] { return std::make_unique<int>(8); });
  EXPECT_FALSE(is_ready(blocked));
  EXPECT_FALSE(is_ready(second)) << "one after the other";
  gate.open();
  EXPECT_EQ(*second.get(), 8);
  EXPECT_TRUE(is_ready(blocked)) << "it came first";
  EXPECT_EQ(blocked.get(), 7);
}

TEST(BackgroundThread, AnExceptionReachesWhoAsksAndHarmsNobodyElse) {
  BackgroundThread thread;
  std::future<void> failing = thread.submit([] { throw std::runtime_error("disk full"); });
  std::future<int> next = thread.submit([] { return 3; });
  EXPECT_EQ(next.get(), 3);
  try {
    failing.get();
    FAIL() << "the exception was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "disk full");
  }
}

TEST(BackgroundThread, TheDestructorRunsWhatIsQueued) {
  Gate gate;
  std::atomic<int> ran = 0;
  std::thread opener;
  {
    BackgroundThread thread;
    thread.submit([opened = gate.opened()] { opened.wait(); });
    for (int i = 0; i < 50; ++i) thread.submit([&ran] { ++ran; });
    EXPECT_EQ(ran, 0);
    opener = std::thread([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
  }
  EXPECT_EQ(ran, 50);
  opener.join();
}

TEST(BackgroundThread, EndsWithoutEverHavingWorked) { const BackgroundThread thread; }

TEST(LineFile, LinesAreWholeAndInOrder) {
  const test::TemporaryFolder folder;
  std::string expected;
  {
    LineFile file(folder / "lines");
    for (int i = 0; i < 500; ++i) {
      const std::string line = "line " + std::to_string(i) + std::string(static_cast<size_t>(i), '.');
      file.append(line);
      expected += line + "\n";
    }
    file.close();
    EXPECT_EQ(test::read_bytes(folder / "lines"), expected) << "closing waits for all lines";
    file.append("one more");
    expected += "one more\n";
  }
  EXPECT_EQ(test::read_bytes(folder / "lines"), expected) << "so does the destructor";
}

TEST(LineFile, GoesOnBehindWhatIsThere) {
  const test::TemporaryFolder folder;
  for (const std::string before : {"", "whole\n", "whole\nhalf a li"}) {
    test::write_bytes(folder / "lines", before);
    LineFile file(folder / "lines");
    file.append("new");
    file.close();
    const std::string separator = before.ends_with("li") ? "\n" : "";
    EXPECT_EQ(test::read_bytes(folder / "lines"), before + separator + "new\n");
  }
}

TEST(LineFile, AFileThatCannotBeOpenedIsRefused) {
  const test::TemporaryFolder folder;
  test::expect_input_error([&] { LineFile file(folder / "nowhere/lines"); }, {"nowhere/lines", "cannot be opened"});
}

// /dev/full takes no byte: the error is met when the line is written, and told to the next that has to do with the
// file.
TEST(LineFile, AWriteThatFailsIsToldLater) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  LineFile closed("/dev/full");
  closed.append("lost");
  EXPECT_THROW(closed.close(), Error);
  LineFile appended("/dev/full");
  appended.append("lost");
  const auto append_until_told = [&] {
    for (int i = 0; i < 1000; ++i) {
      appended.append("lost as well");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  EXPECT_THROW(append_until_told(), Error);
}

}  // namespace
}  // namespace hat
