#include <algorithm>
#include <atomic>
#include <cmath>

#include "checkpoint_support.hpp"
#include "hat/checkpoint/checkpoint_survey.hpp"
#include "hat/io/durable.hpp"
#include "hat/io/hdf5.hpp"

namespace hat {
namespace {

namespace fs = std::filesystem;
using test::expect_input_error;
using test::StoredTensor;
using test::write_checkpoint;

class CheckpointTest : public ::testing::Test {
 protected:
  fs::path run() const { return folder_.path(); }
  void expect_refused(const fs::path& path, const std::vector<std::string>& parts) {
    expect_input_error([&] { CheckpointReader{path}; }, parts);
  }
  test::TemporaryFolder folder_;
  std::vector<StoredTensor> tensors_ = test::make_tensors();
};

std::vector<float> read_rows(const CheckpointReader& reader, const StoredTensor& tensor, int64_t first, int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * tensor.columns), -1.0F);
  reader.read(tensor.path, first, rows, tensor.columns, values.data());
  return values;
}

TEST_F(CheckpointTest, EverythingComesBackFromAnyNumberOfServers) {
  for (int64_t servers = 1; servers <= 4; ++servers) {
    const fs::path folder = write_checkpoint(run(), servers, servers, tensors_);
    EXPECT_EQ(folder, run() / "checkpoints" / ("step-0000000" + std::to_string(servers)));
    const CheckpointReader reader(folder);
    EXPECT_EQ(reader.tensors().size(), tensors_.size());
    for (const StoredTensor& tensor : tensors_) {
      EXPECT_TRUE(reader.has(tensor.path));
      EXPECT_EQ(read_rows(reader, tensor, 0, tensor.rows), tensor.values) << tensor.path;
      for (int64_t first = 0; first < tensor.rows; first += 3) {
        const int64_t rows = std::min<int64_t>(5, tensor.rows - first);
        const auto begin = tensor.values.begin() + first * tensor.columns;
        EXPECT_EQ(read_rows(reader, tensor, first, rows), std::vector<float>(begin, begin + rows * tensor.columns));
      }
    }
    EXPECT_FALSE(reader.has("/parameters/other"));
  }
}

TEST_F(CheckpointTest, StateComesBack) {
  const CheckpointReader reader(write_checkpoint(run(), 1000, 2, tensors_));
  const CheckpointState expected = test::make_state(1000);
  const CheckpointState& state = reader.state();
  EXPECT_EQ(state.step, expected.step);
  EXPECT_EQ(state.epoch, expected.epoch);
  EXPECT_EQ(state.tokens, expected.tokens);
  EXPECT_EQ(state.seed, expected.seed);
  EXPECT_EQ(state.block_names, expected.block_names);
  EXPECT_EQ(state.block_versions, expected.block_versions);
  EXPECT_EQ(state.recent_norms, expected.recent_norms);
  EXPECT_EQ(state.deck, expected.deck);
  EXPECT_EQ(state.dataset_path, expected.dataset_path);
  EXPECT_EQ(state.dataset_identity, expected.dataset_identity);
  EXPECT_EQ(state.tokenizer, expected.tokenizer);
  EXPECT_EQ(state.model.family, expected.model.family);
  EXPECT_EQ(state.model.width, expected.model.width);
  EXPECT_EQ(state.model.layers, expected.model.layers);
  EXPECT_EQ(state.model.heads, expected.model.heads);
  EXPECT_EQ(state.model.max_length, expected.model.max_length);
  EXPECT_EQ(state.model.vocabulary, expected.model.vocabulary);
  EXPECT_EQ(state.model.tied, expected.model.tied);
  EXPECT_EQ(state.model.norm_epsilon, expected.model.norm_epsilon);
  EXPECT_EQ(state.model.rope_base, expected.model.rope_base);
}

TEST_F(CheckpointTest, TheMasterShowsEveryTensorWhole) {
  const fs::path folder = write_checkpoint(run(), 5, 3, tensors_);
  fs::rename(run() / "checkpoints", run() / "moved");  // names inside are relative
  const auto file = hdf5::File::open(run() / "moved" / folder.filename() / "checkpoint.h5");
  for (const StoredTensor& tensor : tensors_) {
    const auto array = file.root().open_array(tensor.path);
    EXPECT_EQ(array.rows(), tensor.rows);
    EXPECT_EQ(array.columns(), tensor.columns);
    EXPECT_EQ(array.is_vector(), tensor.is_vector);
    std::vector<float> values(tensor.values.size());
    array.read(0, tensor.rows, values.data());
    EXPECT_EQ(values, tensor.values);
  }
}

TEST_F(CheckpointTest, FoundByFolderFileOrRun) {
  EXPECT_FALSE(newest_checkpoint(run()).has_value());
  write_checkpoint(run(), 7, 1, tensors_);
  const fs::path folder = write_checkpoint(run(), 100000010, 1, tensors_);
  EXPECT_EQ(newest_checkpoint(run()), folder);
  EXPECT_EQ(CheckpointReader(run()).folder(), folder);
  EXPECT_EQ(CheckpointReader(folder).folder(), folder);
  EXPECT_EQ(CheckpointReader(folder / "checkpoint.h5").folder(), folder);
  expect_refused(folder / "server-0.h5", {"server-0.h5", "is not a checkpoint.h5"});
  expect_refused(run() / "none", {"none", "no such file"});
}

TEST_F(CheckpointTest, UnfinishedOnesDoNotCount) {
  const fs::path whole = write_checkpoint(run(), 10, 2, tensors_);
  const fs::path folder = checkpoint_folder(run(), 20);
  write_server_file(folder, 0, 20, test::deal(tensors_, 2)[0]);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_EQ(newest_checkpoint(run()), whole);
  expect_refused(folder.string() + ".partial", {"step-00000020.partial", "not completed"});
  // The second server's file never came.
  expect_input_error([&] { complete_checkpoint(folder, test::make_state(20), test::deal(tensors_, 2)); },
                     {"server-1.h5", "no such file"});
  EXPECT_FALSE(fs::exists(folder));
  const test::TemporaryFolder empty;
  fs::create_directories(empty / "checkpoints");
  expect_refused(empty.path(), {"no complete checkpoint"});
  expect_refused(empty / "checkpoints", {"is no checkpoint"});
}

TEST_F(CheckpointTest, UnfinishedOnesAreSetAsideForThoseToCome) {
  const fs::path newest = write_checkpoint(run(), 10, 2, tensors_);
  const fs::path unfinished = write_checkpoint(run(), 20, 2, tensors_);
  fs::remove(unfinished / "complete");
  EXPECT_EQ(set_incomplete_aside(run()), std::vector<fs::path>{unfinished.string() + ".incomplete"});
  EXPECT_FALSE(fs::exists(unfinished));
  EXPECT_EQ(newest_checkpoint(run()), newest);
  // Its name is free again, and nothing is lost when that happens twice.
  EXPECT_EQ(write_checkpoint(run(), 20, 2, tensors_), unfinished);
  fs::remove(unfinished / "complete");
  EXPECT_EQ(set_incomplete_aside(run()), std::vector<fs::path>{unfinished.string() + ".incomplete-2"});
  EXPECT_TRUE(fs::exists(unfinished.string() + ".incomplete/server-1.h5"));
  EXPECT_TRUE(set_incomplete_aside(run()).empty());
}

TEST_F(CheckpointTest, OlderOnesAreNamedBesideADamagedOne) {
  write_checkpoint(run(), 10, 1, tensors_);
  write_checkpoint(run(), 20, 1, tensors_);
  const fs::path damaged = write_checkpoint(run(), 30, 1, tensors_);
  fs::resize_file(damaged / "server-0.h5", 1000);
  EXPECT_EQ(
      way_around(damaged),
      "; there are older checkpoints (step-00000010, step-00000020): move step-00000030 away to use the newest of "
      "them");
  EXPECT_EQ(way_around(run() / "checkpoints/step-00000010"), "");
  try {
    const CheckpointReader reader(run());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with(way_around(damaged))) << error.what();
  }
}

TEST_F(CheckpointTest, RotationKeepsTheNewest) {
  for (const int64_t step : {10, 20, 30, 40}) write_checkpoint(run(), step, 1, tensors_);
  write_server_file(checkpoint_folder(run(), 15), 0, 15, test::deal(tensors_, 1)[0]);
  write_server_file(checkpoint_folder(run(), 50), 0, 50, test::deal(tensors_, 1)[0]);
  rotate_checkpoints(run(), 2);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(run() / "checkpoints")) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"step-00000030", "step-00000040", "step-00000050.partial"}));
  EXPECT_THROW(rotate_checkpoints(run(), 0), Error);
}

TEST_F(CheckpointTest, AllIsMadeDurableBeforeItCounts) {
  std::atomic<int64_t> count{0};
  auto* before = set_fsync_counter(&count);
  const auto slices = test::deal(tensors_, 1);
  write_server_file(checkpoint_folder(run(), 1), 0, 1, slices[0]);
  EXPECT_EQ(count, 2);  // the file, its folder
  complete_checkpoint(checkpoint_folder(run(), 1), test::make_state(1), slices);
  EXPECT_EQ(count, 7);  // master, folder, marker, folder, folder of the checkpoints
  set_fsync_counter(before);
}

TEST_F(CheckpointTest, NothingIsOverwrittenAndNoStrangerComesAlong) {
  write_checkpoint(run(), 10, 1, tensors_);
  EXPECT_THROW(write_checkpoint(run(), 10, 1, tensors_), Error);
  // An earlier attempt at the step by more servers.
  write_server_file(checkpoint_folder(run(), 20), 2, 20, test::deal(tensors_, 3)[2]);
  const fs::path folder = write_checkpoint(run(), 20, 2, tensors_);
  EXPECT_FALSE(fs::exists(folder / "server-2.h5"));
  EXPECT_EQ(read_rows(CheckpointReader(folder), tensors_[0], 0, 257), tensors_[0].values);
}

TEST_F(CheckpointTest, SlicesMustCoverTheTensors) {
  const auto complete = [&](const std::vector<std::vector<TensorSlice>>& slices) {
    write_server_file(checkpoint_folder(run(), 1), 0, 1, slices[0]);
    complete_checkpoint(checkpoint_folder(run(), 1), test::make_state(1), slices);
  };
  const StoredTensor& tensor = tensors_[2];
  EXPECT_THROW(complete({{tensor.slice(0, 3), tensor.slice(4, 3)}}), Error);
  EXPECT_THROW(complete({{tensor.slice(0, 3), tensor.slice(2, 5)}}), Error);
  EXPECT_THROW(complete({{tensor.slice(1, 6)}}), Error);
  EXPECT_THROW(complete({{tensor.slice(0, 6)}}), Error);
  EXPECT_FALSE(newest_checkpoint(run()).has_value());
  EXPECT_NO_THROW(complete({{tensor.slice(0, 3), tensor.slice(3, 0), tensor.slice(3, 4)}}));
}

TEST_F(CheckpointTest, WrongShapesAreRefused) {
  const CheckpointReader reader(write_checkpoint(run(), 1, 2, tensors_));
  std::vector<float> values(2000);
  expect_input_error([&] { reader.read(tensors_[2].path, 0, 7, 5, values.data()); }, {tensors_[2].path, "(7, 6)"});
  expect_input_error([&] { reader.read(tensors_[2].path, 3, 5, 6, values.data()); }, {tensors_[2].path, "(7, 6)"});
  expect_input_error([&] { reader.read("/parameters/none", 0, 1, 6, values.data()); }, {"/parameters/none", "missing"});
}

TEST_F(CheckpointTest, DamagedFoldersGiveOneLine) {
  const fs::path folder = write_checkpoint(run(), 10, 2, tensors_);
  const fs::path server = folder / "server-1.h5";
  const fs::path master = folder / "checkpoint.h5";
  const fs::path marker = folder / "complete";
  const auto with = [&](const fs::path& file, const std::string& content, const std::vector<std::string>& parts) {
    const std::string whole = test::read_bytes(file);
    test::write_bytes(file, content);
    expect_refused(folder, parts);
    test::write_bytes(file, whole);
    EXPECT_NO_THROW(CheckpointReader{folder});
  };
  const std::string server_bytes = test::read_bytes(server);
  const std::string master_bytes = test::read_bytes(master);
  std::string marker_bytes = test::read_bytes(marker);
  with(server, server_bytes.substr(0, server_bytes.size() / 2), {"server-1.h5", "truncated"});
  with(server, "", {"server-1.h5", "is empty"});
  with(server, "hello", {"server-1.h5", "is not an HDF5 file"});
  with(server, test::read_bytes(folder / "server-0.h5"), {"server-1.h5", "attribute 'server'", "is 0, not 1"});
  with(server, master_bytes, {"server-1.h5", "not a 'hat-checkpoint-server'"});
  with(master, master_bytes.substr(0, master_bytes.size() - 9), {"checkpoint.h5", "truncated"});
  with(master, "", {"checkpoint.h5", "is empty"});
  with(master, server_bytes, {"checkpoint.h5", "not a 'hat-checkpoint'"});
  marker_bytes[marker_bytes.size() - 3] ^= 1;
  with(marker, marker_bytes, {"complete", "does not fit checkpoint.h5"});
  with(marker, "", {"complete", "does not fit checkpoint.h5"});

  fs::rename(marker, folder / "marker");
  expect_refused(folder, {"complete", "is missing", "not completed"});
  fs::rename(folder / "marker", marker);
  fs::remove(server);
  expect_refused(folder, {"server-1.h5", "no such file"});
}

TEST_F(CheckpointTest, FilesOfAnotherStepAreRefused) {
  const fs::path folder = write_checkpoint(run(), 10, 2, tensors_);
  const fs::path other = write_checkpoint(run(), 11, 2, tensors_);
  fs::copy_file(other / "server-1.h5", folder / "server-1.h5", fs::copy_options::overwrite_existing);
  expect_refused(folder, {"server-1.h5", "attribute 'step'", "is 11", "step 10"});
  fs::copy_file(other / "complete", folder / "complete", fs::copy_options::overwrite_existing);
  expect_refused(folder, {"complete", "does not fit"});
}

TEST_F(CheckpointTest, OtherFormatVersionsAreRefused) {
  const fs::path folder = write_checkpoint(run(), 10, 1, tensors_);
  const auto replace = [&](const std::string& name, const std::string& format) {
    auto file = hdf5::File::create(folder / name);
    file.root().set_text("format", format);
    file.root().set_number<int64_t>("format_version", 2);
    file.close();
  };
  const std::string master = test::read_bytes(folder / "checkpoint.h5");
  replace("checkpoint.h5", "hat-checkpoint");
  expect_refused(folder, {"checkpoint.h5", "format_version", "is 2, this build reads 1"});
  test::write_bytes(folder / "checkpoint.h5", master);
  replace("server-0.h5", "hat-checkpoint-server");
  expect_refused(folder, {"server-0.h5", "format_version", "is 2, this build reads 1"});
}

/// Changes one value of a tensor inside a server's file, behind the back of the checksum.
void flip_value(const fs::path& path, float value) {
  std::string bytes = test::read_bytes(path);
  const std::string pattern(reinterpret_cast<const char*>(&value), sizeof value);
  const size_t at = bytes.find(pattern);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  test::write_bytes(path, bytes);
}

TEST_F(CheckpointTest, ChangedValuesAreFound) {
  const fs::path folder = write_checkpoint(run(), 10, 2, tensors_);
  flip_value(folder / "server-0.h5", tensors_[2].values[4]);
  const CheckpointReader reader(folder);
  expect_input_error([&] { read_rows(reader, tensors_[2], 0, 7); }, {"server-0.h5", tensors_[2].path, "checksum"});
  EXPECT_EQ(read_rows(reader, tensors_[0], 0, 257), tensors_[0].values);
}

TEST_F(CheckpointTest, ParametersByLayout) {
  ModelConfig config;
  config.width = 16;
  config.layers = 2;
  config.heads = 2;
  config.vocabulary = 19;
  const ModelLayout layout = make_layout(config);
  std::vector<std::vector<float>> blocks;
  std::vector<TensorSlice> slices;
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    auto& values = blocks.emplace_back(static_cast<size_t>(layout.blocks[b].size));
    initialize(layout, static_cast<int64_t>(b), 0, values.data(), layout.blocks[b].size, 9);
    for (const TensorSpec& tensor : layout.blocks[b].tensors) {
      slices.push_back({parameter_path(layout.blocks[b], tensor), tensor.rows, tensor.columns, tensor.is_vector, 0,
                        tensor.rows, values.data() + tensor.offset});
    }
  }
  EXPECT_EQ(slices.front().path.rfind("/parameters/embedding.", 0), 0U);
  write_server_file(checkpoint_folder(run(), 3), 0, 3, slices);
  complete_checkpoint(checkpoint_folder(run(), 3), test::make_state(3), {slices});
  EXPECT_EQ(read_parameters(CheckpointReader(run()), layout), blocks);
}

TEST_F(CheckpointTest, SurveyReportsNormsAndGoesOnBehindDamage) {
  tensors_[1].values[2] = NAN;
  const fs::path folder = write_checkpoint(run(), 10, 3, tensors_);
  const CheckpointSurvey whole = survey_checkpoint(run());
  EXPECT_TRUE(whole.problems.empty());
  ASSERT_EQ(whole.tensors.size(), tensors_.size());
  for (const TensorSurvey& survey : whole.tensors) {
    const auto tensor =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.path == survey.path; });
    double squares = 0.0;
    for (const float value : tensor->values) squares += std::isfinite(value) ? static_cast<double>(value) * value : 0.0;
    EXPECT_NEAR(survey.norm, std::sqrt(squares), 1e-12 * survey.norm) << survey.path;
    EXPECT_EQ(survey.not_finite, survey.is_vector ? 1 : 0);
    EXPECT_EQ(survey.unreadable_values, 0);
  }
  fs::remove(folder / "server-2.h5");
  fs::remove(folder / "complete");
  flip_value(folder / "server-0.h5", tensors_[2].values[4]);
  const CheckpointSurvey damaged = survey_checkpoint(folder);
  EXPECT_EQ(damaged.problems.size(), 3U);
  EXPECT_EQ(damaged.tensors.size(), tensors_.size());
  for (const TensorSurvey& survey : damaged.tensors) {
    EXPECT_EQ(survey.unreadable_values > 0, !survey.is_vector) << survey.path;
  }
  test::write_bytes(folder / "checkpoint.h5", "");
  EXPECT_EQ(survey_checkpoint(folder).problems.size(), 1U);
  EXPECT_FALSE(survey_checkpoint(folder).state.has_value());
}

}  // namespace
}  // namespace hat
