#include <sys/stat.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "hat/io/checksum.hpp"
#include "hat/io/durable.hpp"
#include "hat/io/hdf5.hpp"
#include "hat/io/text_reader.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using test::expect_input_error;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

std::vector<float> counting(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

void write_matrix(const std::filesystem::path& path, int64_t rows, int64_t columns, float first = 1.0F) {
  auto file = hdf5::File::create(path);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  std::iota(values.begin(), values.end(), first);
  file.root().create_array("values", hdf5::Element::float32, {rows, columns, false}).write(0, rows, values.data());
  file.close();
}

TEST(Hdf5, NumbersAndTextsComeBack) {
  const TemporaryFolder folder;
  {
    auto file = hdf5::File::create(folder / "a.h5");
    auto group = file.root().create_group("one/two");
    group.set_text("text", "käse\nline");
    group.set_number<int64_t>("integer", -(int64_t{1} << 40));
    group.set_number<uint64_t>("unsigned", ~uint64_t{0});
    group.set_number<double>("real", 0.1);
    group.write_strings("strings", {"a", "", "long " + std::string(5000, 'x')});
    group.write_strings("no_strings", {});
    group.write_vector<int64_t>("integers", {1, -2, int64_t{1} << 50});
    group.write_vector<double>("nothing", {});
    { auto keep = std::move(group); }
    file.close();
  }
  const auto file = hdf5::File::open(folder / "a.h5");
  const auto group = file.root().open_group("one").open_group("two");
  EXPECT_EQ(group.name(), "/one/two");
  EXPECT_EQ(group.text("text"), "käse\nline");
  EXPECT_EQ(group.number<int64_t>("integer"), -(int64_t{1} << 40));
  EXPECT_EQ(group.number<uint64_t>("unsigned"), ~uint64_t{0});
  EXPECT_EQ(group.number<double>("real"), 0.1);
  EXPECT_EQ(group.read_strings("strings"), (std::vector<std::string>{"a", "", "long " + std::string(5000, 'x')}));
  EXPECT_TRUE(group.read_strings("no_strings").empty());
  EXPECT_EQ(group.read_vector<int64_t>("integers"), (std::vector<int64_t>{1, -2, int64_t{1} << 50}));
  EXPECT_TRUE(group.read_vector<double>("nothing").empty());
  EXPECT_TRUE(file.root().has("one/two/integers"));
  EXPECT_FALSE(file.root().has("one/three/integers"));
  EXPECT_TRUE(file.root().is_group("one"));
  EXPECT_EQ(group.names(), (std::vector<std::string>{"integers", "no_strings", "nothing", "strings"}));
}

TEST(Hdf5, RowsOfMatrices) {
  const TemporaryFolder folder;
  write_matrix(folder / "m.h5", 5, 3);
  const auto file = hdf5::File::open(folder / "m.h5");
  const auto array = file.root().open_array("values");
  EXPECT_EQ(array.rows(), 5);
  EXPECT_EQ(array.columns(), 3);
  std::vector<float> values(6);
  array.read(2, 2, values.data());
  EXPECT_EQ(values, (std::vector<float>{7, 8, 9, 10, 11, 12}));
  expect_input_error([&] { array.read(4, 2, values.data()); }, {"m.h5", "/values", "5 rows"});
}

TEST(Hdf5, AppendGrowsAndConverts) {
  const TemporaryFolder folder;
  {
    auto file = hdf5::File::create(folder / "e.h5");
    {
      auto array = file.root().create_extendible("tokens", hdf5::Element::uint16, {0, 1, true}, 4);
      const std::vector<uint16_t> first{1, 2, 3};
      const std::vector<uint16_t> second{65535, 5, 6, 7};
      array.append(3, first.data());
      array.append(4, second.data());
    }
    file.close();
  }
  const auto file = hdf5::File::open(folder / "e.h5");
  const auto array = file.root().open_array("tokens");
  EXPECT_EQ(array.element(), hdf5::Element::uint16);
  std::vector<int32_t> values(7);
  array.read(0, 7, values.data());
  EXPECT_EQ(values, (std::vector<int32_t>{1, 2, 3, 65535, 5, 6, 7}));
}

TEST(Hdf5, VirtualArrayIsWholeAndMissingPartsAreNan) {
  const TemporaryFolder folder;
  write_matrix(folder / "a.h5", 2, 3, 1.0F);
  write_matrix(folder / "b.h5", 1, 3, 7.0F);
  {
    auto file = hdf5::File::create(folder / "all.h5");
    file.root().create_virtual("t", {3, 3, false}, {{"a.h5", "/values", 0, 2}, {"b.h5", "/values", 2, 1}});
    file.close();
  }
  std::vector<float> values(9);
  const auto read = [&] {
    const auto file = hdf5::File::open(folder / "all.h5");
    file.root().open_array("t").read(0, 3, values.data());
  };
  read();
  EXPECT_EQ(values, counting(9));
  // Names of parts are relative: the folder may be renamed.
  std::filesystem::remove(folder / "b.h5");
  read();
  EXPECT_EQ(values[5], 6.0F);
  for (size_t i = 6; i < 9; ++i) EXPECT_TRUE(std::isnan(values[i]));
}

TEST(Hdf5, UnreadableFilesAreNamedWithTheReason) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& name) { return [&folder, name] { hdf5::File::open(folder / name); }; };
  expect_input_error(open("none.h5"), {"none.h5", "no such file"});
  std::filesystem::create_directory(folder / "dir.h5");
  expect_input_error(open("dir.h5"), {"dir.h5", "is a folder"});
  ASSERT_EQ(mkfifo((folder / "pipe.h5").c_str(), 0600), 0);  // reading it would wait for ever
  expect_input_error(open("pipe.h5"), {"pipe.h5", "is no regular file"});
  write_bytes(folder / "empty.h5", "");
  expect_input_error(open("empty.h5"), {"empty.h5", "is empty"});
  write_bytes(folder / "text.h5", "not what you think\n");
  expect_input_error(open("text.h5"), {"text.h5", "is not an HDF5 file"});
  write_matrix(folder / "m.h5", 100, 100);
  const std::string whole = read_bytes(folder / "m.h5");
  for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{20}}) {
    write_bytes(folder / "short.h5", whole.substr(0, size));
    expect_input_error(open("short.h5"), {"short.h5", "truncated"});
  }
}

TEST(Hdf5, MissingObjectsAndWrongTypesAreNamed) {
  const TemporaryFolder folder;
  write_matrix(folder / "m.h5", 2, 2);
  const auto file = hdf5::File::open(folder / "m.h5");
  const auto root = file.root();
  expect_input_error([&] { root.open_array("other"); }, {"m.h5", "/other", "is missing"});
  expect_input_error([&] { root.open_group("deep/er"); }, {"/deep/er", "is missing"});
  expect_input_error([&] { root.text("format"); }, {"attribute 'format'", "is missing"});
  expect_input_error([&] { root.read_strings("values"); }, {"/values", "is not a list of texts"});
  expect_input_error([&] { root.open_group("values"); }, {"/values", "cannot open the group"});
}

TEST(Hdf5, TextsOfFixedLengthAreReadToo) {
  const TemporaryFolder folder;
  {
    // As other programs write them; the module itself never does.
    const hid_t file = H5Fcreate((folder / "fixed.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t type = H5Tcopy(H5T_C_S1);
    ASSERT_GE(H5Tset_size(type, 8), 0);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, "key", type, space, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Awrite(attribute, type, "abc\0\0\0\0"), 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
    ASSERT_GE(H5Fclose(file), 0);
  }
  EXPECT_EQ(hdf5::File::open(folder / "fixed.h5").root().text("key"), "abc");
}

TEST(Hdf5, HandlesMoveAndCloseOnce) {
  const TemporaryFolder folder;
  auto file = hdf5::File::create(folder / "a.h5");
  auto first = file.root().create_group("g");
  hdf5::Group second = std::move(first);
  first = file.root().create_group("h");
  EXPECT_EQ(second.name(), "/g");
  EXPECT_THROW(file.close(), Error);  // objects of the file are alive
}

TEST(Hdf5, FullDiskIsAnErrorWithTheSystemsReason) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "/dev/full does not exist here";
  // In a process of its own: HDF5 keeps a little memory of a file that it could not close.
  const auto write = [] {
    try {
      auto file = hdf5::File::create("/dev/full");
      file.root().write_vector<double>("values", std::vector<double>(1000));
      file.close();
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      _exit(3);
    }
    _exit(0);
  };
  EXPECT_EXIT(write(), ::testing::ExitedWithCode(3), "^/dev/full: .*No space left on device$");
}

TEST(Hdf5, ManyThreadsReadOneArray) {
  const TemporaryFolder folder;
  write_matrix(folder / "m.h5", 1000, 4);
  const auto file = hdf5::File::open(folder / "m.h5");
  const auto array = file.root().open_array("values");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 300; ++i) {
        const int64_t row = (i * 37 + t * 11) % 1000;
        float values[4];
        array.read(row, 1, values);
        if (values[3] != static_cast<float>(row * 4 + 4)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Durable, FsyncsAreMadeAndCounted) {
  const TemporaryFolder folder;
  std::atomic<int64_t> count{0};
  auto* before = set_fsync_counter(&count);
  write_matrix(folder / "a.h5", 1, 1);
  EXPECT_EQ(count, 1);  // close
  rename_durably(folder / "a.h5", folder / "b.h5");
  EXPECT_EQ(count, 2);  // the folder
  std::filesystem::create_directory(folder / "sub");
  rename_durably(folder / "b.h5", folder / "sub/b.h5");
  EXPECT_EQ(count, 4);  // both folders
  write_file_durably(folder / "marker", "yes\n");
  EXPECT_EQ(count, 6);
  set_fsync_counter(before);
  EXPECT_EQ(read_bytes(folder / "marker"), "yes\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "marker.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / "sub/b.h5"));
  EXPECT_THROW(rename_durably(folder / "none", folder / "x"), Error);
  EXPECT_THROW(fsync_file(folder / "none"), Error);
}

TEST(ChecksumTest, MatchesPublishedValues) {
  const auto of = [](const std::string& text) {
    Checksum checksum;
    checksum.add(text.data(), text.size());
    return checksum_text(checksum.value());
  };
  EXPECT_EQ(of(""), "ef46db3751d8e999");
  EXPECT_EQ(of("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(of("abc"), "44bc2cf5ad770999");
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), "fbcea83c8a378bf1");
}

TEST(ChecksumTest, PiecesMakeNoDifference) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  Checksum whole;
  whole.add(text.data(), text.size());
  for (const size_t piece : {1U, 3U, 31U, 32U, 33U, 100U}) {
    Checksum pieces;
    for (size_t i = 0; i < text.size(); i += piece) pieces.add(text.data() + i, std::min(piece, text.size() - i));
    EXPECT_EQ(pieces.value(), whole.value()) << piece;
  }
}

std::string read_all(TextReader& reader) {
  std::string text;
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) text.append(piece.data(), piece.size());
  return text;
}

TEST(TextReaderTest, PlainAndGzipReadTheSame) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 700000) text += "line " + std::to_string(text.size()) + "\n";
  write_bytes(folder / "plain", text);
  test::write_gzip(folder / "packed.txt", text);  // told by content, not by name
  for (const char* name : {"plain", "packed.txt"}) {
    TextReader reader(folder / name);
    EXPECT_EQ(read_all(reader), text);
    TextReader lines(folder / name);
    std::string line;
    std::string joined;
    while (lines.next_line(line)) joined += line + "\n";
    EXPECT_EQ(joined, text);
  }
}

TEST(TextReaderTest, LinesOfEveryKind) {
  const TemporaryFolder folder;
  write_bytes(folder / "t", "a\r\n\nlast");
  TextReader reader(folder / "t");
  std::string line;
  ASSERT_TRUE(reader.next_line(line));
  EXPECT_EQ(line, "a");
  ASSERT_TRUE(reader.next_line(line));
  EXPECT_EQ(line, "");
  ASSERT_TRUE(reader.next_line(line));
  EXPECT_EQ(line, "last");
  EXPECT_FALSE(reader.next_line(line));
}

TEST(TextReaderTest, DamageIsNamed) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100000; ++i) text += std::to_string(i * 7919);
  test::write_gzip(folder / "whole.gz", text);
  const std::string packed = read_bytes(folder / "whole.gz");
  const auto read = [&](const std::string& name) {
    return [&folder, name] {
      TextReader reader(folder / name);
      read_all(reader);
    };
  };
  write_bytes(folder / "short.gz", packed.substr(0, packed.size() / 2));
  expect_input_error(read("short.gz"), {"short.gz", "end early"});
  write_bytes(folder / "tail.gz", packed.substr(0, packed.size() - 3));
  expect_input_error(read("tail.gz"), {"tail.gz", "end early"});
  std::string flipped = packed;
  flipped[packed.size() / 2] = static_cast<char>(flipped[packed.size() / 2] ^ 0x55);
  write_bytes(folder / "flip.gz", flipped);
  expect_input_error(read("flip.gz"), {"flip.gz", "damaged"});
  expect_input_error(read("none"), {"none", "no such file"});
  std::filesystem::create_directory(folder / "dir");
  expect_input_error(read("dir"), {"dir", "is a folder"});
}

}  // namespace
}  // namespace hat
