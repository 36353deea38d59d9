#include <algorithm>
#include <functional>

#include "checkpoint_support.hpp"
#include "hat/checkpoint/checkpoint_survey.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/dataset/dataset_writer.hpp"
#include "hat/metrics/metrics_file.hpp"

// Files cut or with a bit flipped at random places: a reason in one line, or what was written, and no crash. (The
// gradient log: test_gradient_log.cpp.)
namespace hat {
namespace {

namespace fs = std::filesystem;

/// Whether `read` is refused, with one line that names a file of `folder`.
bool is_refused(const fs::path& folder, const std::function<void()>& read) {
  try {
    read();
  } catch (const InputError& error) {
    const std::string line = error.what();
    EXPECT_NE(line.find(folder.string()), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    return true;
  }
  return false;
}

class DamagedCheckpoint : public ::testing::Test {
 protected:
  /// Every value comes back, or the reason why it does not.
  bool is_read_refused() {
    return is_refused(folder_.path(), [this] {
      const CheckpointReader reader(checkpoint_);
      EXPECT_EQ(reader.state().step, 10);
      EXPECT_EQ(reader.state().deck, test::make_state(10).deck);
      for (const test::StoredTensor& tensor : tensors_) {
        std::vector<float> values(tensor.values.size());
        reader.read(tensor.path, 0, tensor.rows, tensor.columns, values.data());
        EXPECT_EQ(values, tensor.values) << tensor.path;
      }
    });
  }
  int64_t times_noticed(const std::string& file, uint64_t seed) {
    int64_t noticed = 0;
    test::damage_at_random(checkpoint_ / file, seed, [&] {
      bool has_problems = true;
      const bool no_checkpoint =
          is_refused(folder_.path(), [&] { has_problems = !survey_checkpoint(checkpoint_).problems.empty(); });
      const bool is_read = !is_read_refused();
      EXPECT_TRUE(is_read || no_checkpoint || has_problems) << "whoever continues finds it, inspect does not";
      noticed += no_checkpoint || has_problems ? 1 : 0;
    });
    EXPECT_FALSE(is_read_refused());
    return noticed;
  }

  test::TemporaryFolder folder_;
  std::vector<test::StoredTensor> tensors_ = test::make_tensors();
  fs::path checkpoint_ = test::write_checkpoint(folder_.path(), 10, 2, tensors_);
};

TEST_F(DamagedCheckpoint, ServerFile) { EXPECT_GT(times_noticed("server-1.h5", 11), 120); }
TEST_F(DamagedCheckpoint, MasterFile) { EXPECT_EQ(times_noticed("checkpoint.h5", 12), 200); }
TEST_F(DamagedCheckpoint, Marker) { EXPECT_EQ(times_noticed("complete", 13), 200); }

TEST(DamagedDataset, IsRefusedOrWhole) {
  const test::TemporaryFolder folder;
  const fs::path path = folder / "d.h5";
  const auto tokenizer = make_byte_tokenizer();
  DatasetWriter writer(path, *tokenizer, {"a source"});
  constexpr int64_t kDocuments = 60;
  for (int64_t i = 0; i < kDocuments; ++i) {
    const Split split = i % 5 == 4 ? Split::validation : Split::train;
    writer.add_text(split, std::string(static_cast<size_t>(3000 + 50 * i), static_cast<char>('a' + i % 26)));
    writer.end_document(split);
  }
  writer.finish();
  const auto read = [&path] {
    const Dataset dataset(path);
    std::vector<int32_t> tokens;
    int64_t sum = 0;
    for (const Split split : {Split::train, Split::validation}) {
      for (int64_t document = 0; document < dataset.documents(split); ++document) {
        tokens.resize(static_cast<size_t>(dataset.length(split, document)));
        dataset.read(split, document, 0, tokens);
        for (const int32_t token : tokens) sum += token;
      }
    }
    dataset.verify();
    return sum;
  };
  const int64_t whole = read();
  int64_t refused = 0;
  test::damage_at_random(path, 21,
                         [&] { refused += is_refused(folder.path(), [&] { EXPECT_EQ(read(), whole); }) ? 1 : 0; });
  EXPECT_GT(refused, 60);
  EXPECT_EQ(read(), whole);
}

// Rows have no checksums: a bit that is flipped in one is another number. The run goes on, whatever it finds.
TEST(DamagedMetrics, AreReadOrSetAside) {
  using Kind = MetricsColumn::Kind;
  const test::TemporaryFolder folder;
  const fs::path path = folder / "metrics.h5";
  const std::vector<MetricsTable> tables{
      {.name = "steps",
       .meaning = "by step",
       .columns = {{"step", Kind::integer, "steps", "done"}, {"loss", Kind::real, "nat/token", "mean"}}}};
  const auto add = [](MetricsFile& file, int64_t step) {
    file.add(0, std::vector<double>{static_cast<double>(step), 0.5});
  };
  {
    MetricsFile file(path, tables, {"block"}, 0);
    for (int64_t step = 1; step <= 50; ++step) add(file, step);
    file.close();
  }
  int64_t refused = 0;
  int64_t aside = 0;
  testing::internal::CaptureStderr();
  test::damage_at_random(path, 31, [&] {
    refused +=
        is_refused(folder.path(), [&] { MetricsTableReader(open_metrics(path), "steps").column("loss"); }) ? 1 : 0;
    {
      MetricsFile file(path, tables, {"block"}, 50);
      add(file, 51);
      file.close();
    }
    const std::vector<double> steps = MetricsTableReader(open_metrics(path), "steps").column("step");
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(steps.back(), 51);
    const fs::path kept = path.string() + ".damaged";
    aside += fs::exists(kept) ? 1 : 0;
    fs::remove(kept);
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), aside) << said;
  EXPECT_GT(refused, 60);
  EXPECT_GE(aside, refused);
}

}  // namespace
}  // namespace hat
