#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>

#include "hat/checkpoint/gradient_log.hpp"
#include "hat/checkpoint/gradient_log_reader.hpp"
#include "hat/core/random.hpp"
#include "hat/io/compression.hpp"
#include "hat/io/durable.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr int64_t kSegmentSteps = 10;
constexpr int64_t kLoggedSteps = 6 * kSegmentSteps;  // of bytes_of

class GradientLogTest : public testing::Test {
 protected:
  fs::path run() const { return folder_.path() / "run"; }

  static ModelConfig model() {
    ModelConfig model;
    model.width = 8;
    model.heads = 2;
    model.layers = 1;
    model.vocabulary = 11;
    return model;
  }

  std::unique_ptr<GradientLog> make_log(int64_t attempt, int64_t first_step, LogPayload payload = LogPayload::sum,
                                        LogDurability durability = LogDurability::commit,
                                        LogCompression compression = LogCompression::none) {
    const LogConfig config{
        .payload = payload, .durability = durability, .interval_s = 0.05, .compression = compression};
    return std::make_unique<GradientLog>(
        run(),
        LogAttempt{.number = attempt,
                   .first_step = first_step,
                   .servers = 1,
                   .payload = payload,
                   .deck = "mode = \"sync\"\n",
                   .vocabulary = 11,
                   .dataset_path = "/data.h5",
                   .dataset_identity = "id",
                   .tokenizer = "byte",
                   .workers = 3,
                   .compute = {.threads = 2, .arithmetic = Element::bf16, .recompute = Recompute::full}},
        0, layout_, parts_, config, kSegmentSteps);
  }

  std::shared_ptr<const std::vector<float>> gradient(const Part& part, int64_t step) const {
    auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(part.count));
    for (size_t i = 0; i < values->size(); ++i) {
      (*values)[i] = static_cast<float>(random_normal(static_cast<uint64_t>(part.block), step, i));
    }
    return values;
  }

  /// Writes a log of some files with a pause before each step, reads it, and returns the bytes of its files.
  std::uintmax_t bytes_of(LogCompression compression, std::chrono::milliseconds pause = {}) {
    fs::remove_all(run());
    auto log = make_log(1, 0, LogPayload::sum, LogDurability::commit, compression);
    for (int64_t step = 0; step < kLoggedSteps; ++step) {
      std::this_thread::sleep_for(pause);
      wait(*log, add_step(*log, step));
    }
    log->close();
    GradientLogReader reader(run());
    EXPECT_EQ(check(reader, 0, kLoggedSteps), kLoggedSteps * std::ssize(parts_));
    EXPECT_TRUE(reader.problems().empty());
    std::uintmax_t all = 0;
    for (const LoggedSegment& segment : reader.attempts().at(0).segments) all += fs::file_size(segment.file);
    return all;
  }

  /// A step of all parts. Returns the number of the last update.
  int64_t add_step(GradientLog& log, int64_t step, double scale = 0.5) const {
    int64_t number = -1;
    for (const Part& part : parts_) {
      const auto values = gradient(part, step);
      log.add(LoggedPush{.worker = 3,
                         .sequence_number = step,
                         .generation = 1,
                         .step = step,
                         .block = part.block,
                         .begin = part.begin,
                         .count = part.count,
                         .tokens = 40,
                         .values_checksum = checksum_of_values(*values)},
              {7 * step, 7 * step + 1}, log.wants_pushes() ? values : nullptr);
      number = log.add(LoggedUpdate{.step = step,
                                    .epoch = 0,
                                    .step_tokens = 40,
                                    .block = part.block,
                                    .begin = part.begin,
                                    .count = part.count,
                                    .version = step,
                                    .tokens = 40,
                                    .scale = scale,
                                    .sum_of_squares = 2},
                       values);
    }
    log.completed_before(step + 1);
    return number;
  }

  static void wait(const GradientLog& log, int64_t number) {
    for (int i = 0; i < 10'000 && !log.may_publish(number); ++i) usleep(1000);
    ASSERT_TRUE(log.may_publish(number));
  }

  /// Checks whatever the reader gives of these steps; returns how many updates that were.
  int64_t check(GradientLogReader& reader, int64_t first, int64_t end) const {
    const GradientLogReader::Attempt* attempt = reader.attempt_of(first);
    if (attempt == nullptr) return 0;
    int64_t sound = 0;
    std::vector<float> values;
    for (const LoggedUpdate& update : reader.updates(*attempt, 0, first, end)) {
      EXPECT_EQ(update.version, update.step);
      EXPECT_EQ(update.scale, 0.5);
      try {
        reader.read(*attempt, 0, update, values);
      } catch (const InputError&) {
        continue;
      }
      EXPECT_EQ(values, *gradient(parts_.at(static_cast<size_t>(update.block)), update.step));
      ++sound;
    }
    return sound;
  }

  TemporaryFolder folder_;
  ModelLayout layout_ = make_layout(model());
  std::vector<Part> parts_ = plan_shards(layout_, 1, OptimizerKind::adamw).parts;
};

// Copies are what another process sees, or finds when the writer was killed at that moment. (In one process HDF5 opens
// no file for reading that it writes.)
TEST_F(GradientLogTest, GivesBackWhatWasWrittenWhileItIsWrittenAndAfterwards) {
  auto log = make_log(1, 0);
  for (int64_t step = 0; step < 25; ++step) {
    wait(*log, add_step(*log, step));
    const fs::path copy = folder_.path() / "copy";
    fs::remove_all(copy);
    fs::copy(run(), copy, fs::copy_options::recursive);
    {
      GradientLogReader reader(copy);
      EXPECT_EQ(check(reader, 0, step + 1), (step + 1) * std::ssize(parts_));
      EXPECT_TRUE(reader.problems().empty());
    }
    if (step == 13) {  // a killed writer's mark is taken back, and ordinary programs open the file
      const fs::path file = log_segment(copy, 1, 0, 10);
      EXPECT_THROW(hdf5::File::open(file), InputError);
      clear_log_writers(copy);
      EXPECT_NO_THROW(hdf5::File::open(file));
      GradientLogReader again(copy);
      EXPECT_EQ(check(again, 0, step + 1), (step + 1) * std::ssize(parts_));
    }
  }
  log->close();
  GradientLogReader reader(run());
  EXPECT_EQ(check(reader, 0, 25), 25 * std::ssize(parts_));
  EXPECT_EQ(check(reader, 12, 14), 2 * std::ssize(parts_));
  ASSERT_EQ(reader.attempts().size(), 1U);
  EXPECT_EQ(reader.attempts()[0].segments.size(), 3U);  // 0, 10, 20
  EXPECT_EQ(reader.attempts()[0].header.deck, "mode = \"sync\"\n");
  const auto pushes = reader.pushes(reader.attempts()[0], 0, 11, 12);
  ASSERT_EQ(std::ssize(pushes), std::ssize(parts_));
  EXPECT_EQ(pushes[0].units, (std::vector<int64_t>{77, 78}));
  EXPECT_EQ(pushes[0].row.worker, 3);
}

TEST_F(GradientLogTest, GivesBackPushes) {
  auto log = make_log(1, 0, LogPayload::push);
  for (int64_t step = 0; step < 12; ++step) add_step(*log, step);
  log->close();
  GradientLogReader reader(run());
  std::vector<float> values;
  int64_t seen = 0;
  for (const auto& push : reader.pushes(reader.attempts()[0], 0, 0, 100)) {
    reader.read(reader.attempts()[0], 0, push.row, values);
    EXPECT_EQ(values, *gradient(parts_.at(static_cast<size_t>(push.row.block)), push.row.step));
    ++seen;
  }
  EXPECT_EQ(seen, 12 * std::ssize(parts_));
}

TEST_F(GradientLogTest, GivesBackWhatWasComputed) {
  const auto lists = [this](int64_t step) {
    return ComputationLists{.versions = std::vector<int64_t>(layout_.blocks.size(), step),
                            .bounds = step % 2 == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{0, 5, step + 9},
                            .sequences = {{.document = step, .begin = 2, .length = 7}, {.document = 1, .earlier = 3}}};
  };
  auto log = make_log(1, 0, LogPayload::metadata);
  for (int64_t step = 0; step < 25; ++step) {
    log->add(LoggedComputation{.worker = 2, .unit = 3 * step, .step = step, .tokens = 40}, lists(step));
    add_step(*log, step);
  }
  log->close();
  GradientLogReader reader(run());
  const GradientLogReader::Attempt& attempt = reader.attempts().at(0);
  EXPECT_EQ(attempt.header.workers, 3);
  EXPECT_EQ(attempt.header.compute.threads, 2);
  EXPECT_EQ(attempt.header.compute.arithmetic, Element::bf16);
  EXPECT_EQ(attempt.header.compute.recompute, Recompute::full);
  const auto computations = reader.computations(attempt, 8, 23);  // of three files
  ASSERT_EQ(computations.size(), 15U);
  for (size_t i = 0; i < computations.size(); ++i) {
    const auto step = static_cast<int64_t>(8 + i);
    EXPECT_EQ(computations[i].row.unit, 3 * step);
    EXPECT_EQ(computations[i].lists.versions, lists(step).versions);
    EXPECT_EQ(computations[i].lists.bounds, lists(step).bounds);
    EXPECT_EQ(computations[i].lists.sequences, lists(step).sequences);
  }
  EXPECT_TRUE(reader.problems().empty());
  // Damaged anywhere: fewer, with a reason, and none that was not written.
  const fs::path file = log_segment(run(), 1, 0, 10);
  std::string whole(fs::file_size(file), '\0');
  std::ifstream(file, std::ios::binary).read(whole.data(), static_cast<std::streamsize>(whole.size()));
  int64_t noticed = 0;
  for (uint64_t trial = 0; trial < 400; ++trial) {
    std::string damaged = whole;
    const auto at = static_cast<size_t>(random_uniform(6, trial, 0) * static_cast<double>(whole.size()));
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (trial % 8)));
    std::ofstream(file, std::ios::binary | std::ios::trunc).write(damaged.data(), std::ssize(damaged));
    GradientLogReader again(run());
    if (again.attempts().empty()) continue;
    try {
      const auto read = again.computations(again.attempts()[0], 10, 20);
      for (const auto& computation : read) {
        EXPECT_EQ(computation.row.unit, 3 * computation.row.step);
        EXPECT_EQ(computation.lists.sequences, lists(computation.row.step).sequences);
      }
      noticed += read.size() < 10 && !again.problems().empty() ? 1 : 0;
    } catch (const Error&) {  // the whole file was passed over
    }
  }
  EXPECT_GT(noticed, 3);
}

TEST_F(GradientLogTest, WritesNothingOverAClosedFile) {
  auto log = make_log(1, 0);
  for (int64_t step = 0; step < 12; ++step) wait(*log, add_step(*log, step));  // the first file ends at step 10
  const fs::path file = log_segment(run(), 1, 0, 0);
  const auto size = fs::file_size(file);
  EXPECT_THROW(
      {
        log->add(LoggedPush{.step = 9}, {}, nullptr);
        log->close();
      },
      Error);
  EXPECT_EQ(fs::file_size(file), size);
}

// At whatever moment a file is read or its writer killed: rows that are in it have their sums there.
TEST_F(GradientLogTest, NoRowIsInTheFileBeforeItsSum) {
  const pid_t writer = fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) {
    try {
      auto log = make_log(1, 0, LogPayload::sum, LogDurability::commit);
      for (int64_t step = 0;; ++step) wait(*log, add_step(*log, step));
    } catch (const std::exception&) {  // a reader that opens a file just when it is made can be in its way
    }
    _exit(0);
  }
  int64_t found = 0;
  int64_t newest = 0;  // step
  std::string missing;
  const auto begin = std::chrono::steady_clock::now();
  while (missing.empty() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) {
    GradientLogReader reader(run(), newest);
    if (reader.attempts().empty()) continue;  // not yet
    const auto& attempt = reader.attempts().front();
    const auto updates = reader.updates(attempt, 0, newest, newest + 10 * kSegmentSteps);
    if (!updates.empty()) newest = updates.back().step;
    std::vector<float> values;
    for (size_t i = updates.size() - std::min<size_t>(updates.size(), 20); i < updates.size(); ++i) {
      try {
        reader.read(attempt, 0, updates[i], values);
        ++found;
      } catch (const InputError& error) {
        // (Other reasons: the file is just being made.)
        if (std::string(error.what()).find("are needed") != std::string::npos) missing = error.what();
      }
    }
  }
  ::kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  EXPECT_EQ(missing, "");
  if (found == 0) GTEST_SKIP() << "the writer ended before anything could be read";
}

TEST_F(GradientLogTest, CompressesWhereItIsTold) {
  EXPECT_LT(bytes_of(LogCompression::deflate), bytes_of(LogCompression::none));
}

// What keeps up with training must not take processor time from it, however slowly it writes: here an fsync for a few
// KiB.
TEST_F(GradientLogTest, DoesNotCompressWhereItHasTime) {
  const auto begin = std::chrono::steady_clock::now();
  const std::uintmax_t plain = bytes_of(LogCompression::none);
  const auto step = (std::chrono::steady_clock::now() - begin) / kLoggedSteps;
  const std::uintmax_t deflated = bytes_of(LogCompression::deflate);
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(10 * step);
  EXPECT_GT(bytes_of(LogCompression::automatic, pause), (plain + deflated) / 2);
}

TEST(Compression, IsForAThreadThatHardlyKeepsUp) {
  const auto halves = [] { return Compressibility{.ratio = 0.5, .bytes_per_s = 100e6}; };
  constexpr int64_t kBytes = 10'000'000;
  CompressionChoice choice;
  EXPECT_FALSE(choice.choose(0, halves));  // nothing was written yet
  choice.begin_file(0, false);
  choice.wrote(kBytes, 1);  // 10 MB/s, in a file of ten seconds
  EXPECT_FALSE(choice.choose(10, halves));
  choice.begin_file(10, false);
  for (int i = 0; i < 8; ++i) choice.wrote(kBytes, 1);
  EXPECT_TRUE(choice.choose(20, halves));
  // Half of the bytes, and 0.1 s to compress them: it stays with that, until there is less to write.
  choice.begin_file(20, true);
  for (int i = 0; i < 8; ++i) choice.wrote(kBytes, 0.6);
  EXPECT_TRUE(choice.choose(30, halves));
  choice.begin_file(30, true);
  for (int i = 0; i < 3; ++i) choice.wrote(kBytes, 0.6);
  EXPECT_FALSE(choice.choose(40, halves));
  // A fast disk is not waited for.
  choice = {};
  choice.begin_file(0, false);
  choice.wrote(100 * kBytes, 1);
  EXPECT_FALSE(choice.choose(1, halves));
}

TEST(Compression, PaysWhereWritingIsSlower) {
  const Compressibility halves{.ratio = 0.5, .bytes_per_s = 100e6};  // saves half of what writing takes
  EXPECT_TRUE(compression_pays(halves, 49e6));
  EXPECT_FALSE(compression_pays(halves, 51e6));
  EXPECT_FALSE(compression_pays(halves, 0));  // nothing was written yet
  EXPECT_FALSE(compression_pays({.ratio = 1.01, .bytes_per_s = 1e9}, 1));
  std::vector<float> values(100'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random_normal(1, 2, i));
  const Compressibility random = measure_compression(values);
  EXPECT_GT(random.ratio, 0.75);  // mantissas are noise, exponents are alike
  EXPECT_LT(random.ratio, 0.95);
  EXPECT_GT(random.bytes_per_s, 1e6);
  std::ranges::fill(values, 1.5F);
  EXPECT_LT(measure_compression(values).ratio, 0.1);
  EXPECT_FALSE(compression_pays(measure_compression({}), 1));
}

// A process that is killed loses nothing that was only not fsynced, so the calls are counted.
TEST_F(GradientLogTest, PublishesNothingThatIsNotOnDisk) {
  std::atomic<int64_t> fsyncs = 0;
  std::atomic<int64_t>* before = set_fsync_counter(&fsyncs);
  auto log = make_log(1, 0);
  wait(*log, add_step(*log, 0));
  for (int64_t step = 1; step < 9; ++step) {
    const int64_t seen = fsyncs;
    const int64_t number = add_step(*log, step);
    wait(*log, number);
    EXPECT_GT(fsyncs, seen) << step;
  }
  log.reset();
  // With `interval` it may be published at once.
  log = make_log(2, 9, LogPayload::sum, LogDurability::interval);
  EXPECT_TRUE(log->may_publish(add_step(*log, 9)));
  log->close();
  set_fsync_counter(before);
}

TEST_F(GradientLogTest, NewerAttemptsReplaceTheStepsOfOlderOnes) {
  auto log = make_log(1, 0);
  for (int64_t step = 0; step < 25; ++step) add_step(*log, step);
  log->close();
  log = make_log(2, 15);
  for (int64_t step = 15; step < 18; ++step) add_step(*log, step);
  log->close();
  GradientLogReader reader(run());
  EXPECT_EQ(reader.attempt_of(14)->header.number, 1);
  EXPECT_EQ(reader.end_of(*reader.attempt_of(14)), 15);
  EXPECT_EQ(reader.attempt_of(15)->header.number, 2);
  EXPECT_EQ(check(reader, 15, 100), 3 * std::ssize(parts_));
  EXPECT_EQ(next_log_attempt(run()), 3);

  prune_log(run(), 10);  // steps 0 to 9 go
  EXPECT_FALSE(fs::exists(log_segment(run(), 1, 0, 0)));
  EXPECT_TRUE(fs::exists(log_segment(run(), 1, 0, 10)));
  prune_log(run(), 15);  // the second attempt begins there
  EXPECT_FALSE(fs::exists(log_folder(run(), 1)));
  EXPECT_TRUE(fs::exists(log_segment(run(), 2, 0, 15)));
}

// Cut or flipped anywhere: a reason, or fewer records, but none that was not written, and no crash.
TEST_F(GradientLogTest, DamageIsNoticed) {
  {
    auto log = make_log(1, 0);
    for (int64_t step = 0; step < 8; ++step) add_step(*log, step);
    log->close();
  }
  const fs::path file = log_segment(run(), 1, 0, 0);
  int64_t noticed = 0;
  test::damage_at_random(file, 5, [&] {
    GradientLogReader reader(run());
    const int64_t sound = check(reader, 0, 100);
    if (sound < 8 * std::ssize(parts_)) ++noticed;
    try {
      for (const auto& attempt : reader.attempts()) reader.pushes(attempt, 0, 0, 100);
    } catch (const InputError&) {
    }
  });
  EXPECT_GT(noticed, 100);  // the rest hit unused space or text
  GradientLogReader reader(run());
  EXPECT_EQ(check(reader, 0, 100), 8 * std::ssize(parts_));
}

TEST_F(GradientLogTest, SaysWhyItCannotWrite) {
  fs::create_directories(run());
  std::ofstream(run() / "log") << "a file where the folder should be";
  auto log = make_log(1, 0);
  try {
    for (int i = 0; i < 10'000; ++i) {
      add_step(*log, 0);
      usleep(1000);
    }
    FAIL() << "it wrote";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("log"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hat
