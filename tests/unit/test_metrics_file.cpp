#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "hat/core/error.hpp"
#include "hat/metrics/metrics_file.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

namespace fs = std::filesystem;

std::vector<MetricsTable> tables() {
  using Kind = MetricsColumn::Kind;
  return {{.name = "steps",
           .meaning = "by step",
           .columns = {{"step", Kind::integer, "steps", "done"}, {"loss", Kind::real, "nat/token", "mean"}}},
          {.name = "other", .meaning = "of the same", .columns = {{"step", Kind::integer, "steps", "done"}}}};
}

void add_steps(MetricsFile& file, int64_t from, int64_t to) {
  for (int64_t step = from; step <= to; ++step) {
    file.add(0, std::vector<double>{static_cast<double>(step), 0.5 * static_cast<double>(step)});
    if (step % 2 == 0) file.add(1, std::vector<double>{static_cast<double>(step)});
  }
}

std::vector<double> column(const fs::path& path, const std::string& table, const std::string& name) {
  return MetricsTableReader(open_metrics(path), table).column(name);
}

std::string refusal(const fs::path& path) {
  try {
    column(path, "steps", "step");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

class MetricsFileTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "metrics.h5";
};

TEST_F(MetricsFileTest, RowsColumnsAndWhatTheyMean) {
  MetricsFile file(path_, tables(), {"embedding", "head"}, 0);
  add_steps(file, 1, 3);
  file.add(0, std::vector<double>{4, std::numeric_limits<double>::quiet_NaN()});
  file.close();
  EXPECT_EQ(column(path_, "steps", "step"), (std::vector<double>{1, 2, 3, 4}));
  const std::vector<double> loss = column(path_, "steps", "loss");
  EXPECT_EQ(loss[2], 1.5);
  EXPECT_TRUE(std::isnan(loss[3]));
  EXPECT_EQ(column(path_, "other", "step"), (std::vector<double>{2}));
  const hdf5::File read = open_metrics(path_);
  EXPECT_EQ(read.root().read_strings("blocks"), (std::vector<std::string>{"embedding", "head"}));
  EXPECT_EQ(read.root().open_array("steps/loss").text("units"), "nat/token");
  EXPECT_EQ(read.root().open_array("steps/step").element(), hdf5::Element::int64);
  EXPECT_EQ(read.root().open_group("steps").text("columns"), "step loss");
}

TEST_F(MetricsFileTest, ARowOfAnotherWidthIsAnError) {
  MetricsFile file(path_, tables(), {}, 0);
  EXPECT_THROW(file.add(0, std::vector<double>{1}), Error);
  file.close();
}

// What a killed writer leaves: the file of its last save, whole, and perhaps half a copy beside it.
TEST_F(MetricsFileTest, TheFileIsWholeWhileItGrows) {
  MetricsFile file(path_, tables(), {}, 0);
  file.save_if_due();
  while (!fs::exists(path_)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(column(path_, "steps", "step").empty());
  add_steps(file, 1, 2);
  file.close();
  std::ofstream(path_.string() + ".tmp") << "half a copy";
  EXPECT_EQ(column(path_, "steps", "step").size(), 2U);
  MetricsFile again(path_, tables(), {}, 2);
  add_steps(again, 3, 3);
  again.close();
  EXPECT_EQ(column(path_, "steps", "step"), (std::vector<double>{1, 2, 3}));
}

// Ten seconds before one is due; if the caller asks while a save is under way, behind that.
TEST_F(MetricsFileTest, ASaveThatIsAskedForDoesNotWait) {
  MetricsFile file(path_, tables(), {}, 0);
  while (!fs::exists(path_)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int64_t step = 1; step <= 3; ++step) {
    add_steps(file, step, step);
    file.save_soon();
    for (int i = 0; i < 5000 && std::ssize(column(path_, "steps", "step")) < step; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      file.save_if_due();
    }
    EXPECT_EQ(std::ssize(column(path_, "steps", "step")), step);
  }
  file.close();
}

TEST_F(MetricsFileTest, WhatHindersASaveIsAnError) {
  MetricsFile file(path_, tables(), {}, 0);
  add_steps(file, 1, 1);
  while (!fs::exists(path_)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fs::remove(path_);
  fs::create_directory(path_.string() + ".tmp");
  EXPECT_THROW(file.close(), std::exception);
}

TEST_F(MetricsFileTest, ContinuingCutsOffTheStepsThatAreMadeAgain) {
  {
    MetricsFile file(path_, tables(), {}, 0);
    add_steps(file, 1, 9);
    file.close();
  }
  MetricsFile file(path_, tables(), {}, 5);
  file.add(0, std::vector<double>{6, 60});
  file.close();
  EXPECT_EQ(column(path_, "steps", "step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(column(path_, "steps", "loss"), (std::vector<double>{0.5, 1, 1.5, 2, 2.5, 60}));
  EXPECT_EQ(column(path_, "other", "step"), (std::vector<double>{2, 4}));
}

TEST_F(MetricsFileTest, WhatCannotBeContinuedIsSetAside) {
  std::ofstream(path_) << "something else";
  testing::internal::CaptureStderr();
  {
    MetricsFile file(path_, tables(), {}, 3);
    add_steps(file, 4, 4);
    file.close();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("metrics.h5.damaged (is not an HDF5 file)"), std::string::npos) << said;
  EXPECT_EQ(column(path_, "steps", "step"), (std::vector<double>{4}));
  EXPECT_TRUE(fs::exists(path_.string() + ".damaged"));
}

TEST_F(MetricsFileTest, ForeignAndCutFilesAreRefusedInOneLine) {
  { hdf5::File::create(path_).close(); }
  EXPECT_NE(refusal(path_).find("not the metrics of a run"), std::string::npos) << refusal(path_);
  {
    MetricsFile file(path_, tables(), {}, 0);
    add_steps(file, 1, 3);
    file.close();
  }
  const auto size = fs::file_size(path_);
  fs::resize_file(path_, size / 2);
  EXPECT_NE(refusal(path_).find("is truncated"), std::string::npos) << refusal(path_);
  EXPECT_EQ(refusal(path_).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace hat
