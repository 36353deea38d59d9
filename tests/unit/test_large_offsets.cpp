#include <fstream>
#include <sstream>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/dataset/data_order.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/dataset/dataset_format.hpp"
#include "hat/io/hdf5.hpp"
#include "io_support.hpp"

/// Offsets beyond 2^31 bytes and 2^32 elements, where 32-bit arithmetic would wrap.
namespace hat {
namespace {

constexpr int64_t kBeyond = (int64_t{1} << 32) + 12345;

/// A dataset whose first training document has kBeyond tokens, of which nearly none are stored: rows of an extendible
/// array that were never written take no space.
void write_sparse_dataset(const std::filesystem::path& path, const std::vector<uint16_t>& last_documents) {
  auto file = hdf5::File::create(path);
  {
    auto root = file.root();
    root.set_text("format", dataset_format::kFormat);
    root.set_number("format_version", dataset_format::kVersion);
    root.set_text("identity", "none");
    root.write_strings("sources", {"sparse"});
    auto tokenizer = root.create_group("tokenizer");
    tokenizer.set_text("name", "byte");
    tokenizer.set_number<int64_t>("vocabulary", 257);
    tokenizer.set_number<int64_t>("end_of_text", 256);
    const auto count = static_cast<int64_t>(last_documents.size());
    auto train = root.create_group("train");
    auto tokens = train.create_extendible("tokens", hdf5::Element::uint16, {0, 1, true}, int64_t{1} << 18);
    tokens.resize(kBeyond + count);
    tokens.write(kBeyond, count, last_documents.data());
    train.write_vector<int64_t>("offsets", {0, kBeyond, kBeyond + count - 2, kBeyond + count});
    train.set_number<int64_t>("text_bytes", kBeyond + count - 3);
    auto validation = root.create_group("validation");
    validation.write_vector<uint16_t>("tokens", {'v', 256});
    validation.write_vector<int64_t>("offsets", {0, 2});
    validation.set_number<int64_t>("text_bytes", 1);
  }
  file.close();
}

TEST(LargeOffsets, TokensBeyondTwoToThe32) {
  const test::TemporaryFolder folder;
  write_sparse_dataset(folder / "d.h5", {'h', 'e', 'l', 'l', 'o', 256, 'x', 256});
  EXPECT_LT(std::filesystem::file_size(folder / "d.h5"), 10'000'000U);
  const Dataset dataset(folder / "d.h5");
  EXPECT_EQ(dataset.tokens(Split::train), kBeyond + 8);
  EXPECT_EQ(dataset.length(Split::train, 0), kBeyond);
  std::vector<int32_t> tokens(6);
  dataset.read(Split::train, 1, 0, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'h', 'e', 'l', 'l', 'o', 256}));
  std::vector<int32_t> last(2);
  dataset.read(Split::train, 2, 0, last);
  EXPECT_EQ(last, (std::vector<int32_t>{'x', 256}));
  std::vector<int32_t> sparse(3, -1);
  dataset.read(Split::train, 0, kBeyond - 3, sparse);
  EXPECT_EQ(sparse, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_THROW(dataset.read(Split::train, 0, kBeyond - 2, sparse), Error);
}

TEST(LargeOffsets, DataOrderReachesTheEndOfAVeryLongDocument) {
  const test::TemporaryFolder folder;
  write_sparse_dataset(folder / "d.h5", {'h', 'e', 'l', 'l', 'o', 256, 'x', 256});
  const Dataset dataset(folder / "d.h5");
  constexpr int64_t kPiece = int64_t{1} << 20;
  DataOrder order(dataset, 1, kPiece, kPiece, LongPolicy::cut);
  int64_t tokens = 0;
  Sequence longest_end;
  const int64_t steps = order.steps_per_epoch(0);
  for (int64_t i = 0; i < steps; ++i) {
    tokens += order.step(i).target_tokens;
    for (const Sequence& sequence : order.step(i).sequences) {
      if (sequence.document == 0 && sequence.begin >= longest_end.begin) longest_end = sequence;
    }
  }
  EXPECT_EQ(tokens, kBeyond + 8);
  EXPECT_EQ(longest_end.begin + longest_end.length, kBeyond);
  const PackedBatch batch = read_batch(dataset, Split::train, {{1, 2, 4}});
  EXPECT_EQ(batch.inputs, (std::vector<int32_t>{'e', 'l', 'l', 'o'}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{'l', 'l', 'o', 256}));
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    int64_t kilobytes = 0;
    if (words >> key >> kilobytes && key == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

TEST(LargeOffsets, TensorBeyondTwoToThe31Bytes) {
  const test::TemporaryFolder folder;
  constexpr int64_t kNeeded = int64_t{8} << 30;
  if (available_memory_bytes() < kNeeded) GTEST_SKIP() << "less than 8 GiB of memory available";
  if (static_cast<int64_t>(std::filesystem::space(folder.path()).available) < kNeeded) {
    GTEST_SKIP() << "less than 8 GiB free in " << folder.path();
  }
  constexpr int64_t kColumns = 1021;
  constexpr int64_t kRows = (int64_t{1} << 29) / kColumns + 1000;
  static_assert(kRows * kColumns * 4 > int64_t{1} << 31);
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  for (int64_t row = 0; row < kRows; ++row)
    values[static_cast<size_t>(row * kColumns + row % kColumns)] = static_cast<float>(row);
  const std::string path = "/parameters/embedding.weight";
  const std::vector<std::vector<TensorSlice>> slices{{{path, kRows, kColumns, false, 0, kRows, values.data()}}};
  CheckpointState state;
  state.step = 1;
  write_server_file(checkpoint_folder(folder.path(), 1), 0, 1, slices[0]);
  complete_checkpoint(checkpoint_folder(folder.path(), 1), state, slices);
  const CheckpointReader reader(folder.path());
  std::vector<float> last(static_cast<size_t>(2 * kColumns));
  for (const int64_t first : {int64_t{0}, kRows / 2, kRows - 2}) {
    reader.read(path, first, 2, kColumns, last.data());
    const auto begin = values.begin() + first * kColumns;
    EXPECT_TRUE(std::equal(last.begin(), last.end(), begin)) << "rows from " << first;
  }
  // The same rows through the virtual array of the master file.
  const auto master = hdf5::File::open(reader.folder() / "checkpoint.h5");
  master.root().open_array(path).read(kRows - 2, 2, last.data());
  EXPECT_TRUE(std::equal(last.begin(), last.end(), values.end() - 2 * kColumns));
}

}  // namespace
}  // namespace hat
