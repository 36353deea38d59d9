#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "hat/comm/ring_all_reduce.hpp"
#include "hat/core/random.hpp"
#include "mpi_test_main.hpp"

namespace hat {
namespace {

void finish(RingAllReduce& ring) {
  while (!ring.step()) std::this_thread::yield();
}

/// Small integers, so that every order of adding gives the same exact sum.
float integer_value(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 13) % 1001 - 500); }

std::vector<float> integer_data(int rank, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = integer_value(rank, i);
  return data;
}

void expect_integer_sum(const std::vector<float>& data, int ranks) {
  for (size_t i = 0; i < data.size(); ++i) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank) expected += integer_value(rank, static_cast<int64_t>(i));
    ASSERT_EQ(data[i], expected) << "element " << i << " of " << data.size();
  }
}

std::vector<float> random_data(int rank, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count));
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<float>(random_normal(11, static_cast<uint64_t>(rank), i));
  }
  return data;
}

TEST(SplitEvenly, CoversInOrderWithSizesThatDifferByOne) {
  for (const int64_t count : {0, 1, 4, 5, 6, 1000003}) {
    for (const int64_t parts : {1, 2, 5, 7}) {
      int64_t end = 0;
      for (int64_t index = 0; index < parts; ++index) {
        const Range range = split_evenly(count, parts, index);
        EXPECT_EQ(range.begin, end);
        EXPECT_GE(range.size(), count / parts);
        EXPECT_LE(range.size(), count / parts + 1);
        end = range.end;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(RingAllReduce, AddsExactlyForEverySize) {
  const Communicator world = Communicator::world();
  const int p = world.size();
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{p - 1}, int64_t{p}, int64_t{p + 1}, int64_t{1000003}}) {
    std::vector<float> data = integer_data(world.rank(), count);
    RingAllReduce ring(world, data, 3);
    finish(ring);
    EXPECT_TRUE(ring.step()) << "a finished ring stays finished";
    expect_integer_sum(data, p);
  }
}

// Ranks start the rings in different orders and advance them unevenly: only the tag tells them apart.
TEST(RingAllReduce, RingsOfDifferentTagsOverlap) {
  const Communicator world = Communicator::world();
  constexpr int kRings = 6;
  std::vector<std::vector<float>> data;
  for (int ring = 0; ring < kRings; ++ring) {
    data.push_back(integer_data(world.rank(), ring % 2 == 0 ? 50021 + ring : 3 * ring));
  }
  std::vector<std::pair<int, RingAllReduce>> rings;
  for (int i = 0; i < kRings; ++i) {
    const int ring = (i + world.rank()) % kRings;
    rings.emplace_back(ring, RingAllReduce(world, data[static_cast<size_t>(ring)], 100 + ring));
  }
  for (uint64_t round = 0; !rings.empty(); ++round) {
    const auto pick =
        static_cast<std::ptrdiff_t>(random_below(5, static_cast<uint64_t>(world.rank()), round, rings.size()));
    if (rings[static_cast<size_t>(pick)].second.step()) rings.erase(rings.begin() + pick);
    std::this_thread::yield();
  }
  for (const std::vector<float>& sum : data) expect_integer_sum(sum, world.size());
}

TEST(RingAllReduce, GathersOnlyWhenEveryRankHasEntered) {
  const Communicator world = Communicator::world();
  std::vector<float> data(1000, 1.0F);
  const bool last = world.rank() == world.size() - 1;
  std::optional<RingAllReduce> ring;
  if (!last) {
    ring.emplace(world, data, 9);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(ring->step(), world.size() == 1);
      EXPECT_FALSE(ring->gathering());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  world.barrier();
  if (last) ring.emplace(world, data, 9);
  finish(*ring);
  EXPECT_FALSE(ring->gathering()) << "it has ended";
}

// Chunk c begins at rank c and goes round: ((d[c] + d[c + 1]) + d[c + 2]) + ...
TEST(RingAllReduce, OrderOfAddingIsFixed) {
  const Communicator world = Communicator::world();
  const int p = world.size();
  constexpr int64_t kCount = 10007;
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < p; ++rank) inputs.push_back(random_data(rank, kCount));
  std::vector<float> expected(kCount);
  for (int chunk = 0; chunk < p; ++chunk) {
    const Range range = split_evenly(kCount, p, chunk);
    for (auto i = static_cast<size_t>(range.begin); i < static_cast<size_t>(range.end); ++i) {
      expected[i] = inputs[static_cast<size_t>(chunk)][i];
      for (int hop = 1; hop < p; ++hop) expected[i] += inputs[static_cast<size_t>((chunk + hop) % p)][i];
    }
  }
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<float> data = inputs[static_cast<size_t>(world.rank())];
    RingAllReduce ring(world, data, 7);
    if (repeat % 2 == world.rank() % 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    finish(ring);
    ASSERT_EQ(std::memcmp(data.data(), expected.data(), kCount * sizeof(float)), 0) << "repeat " << repeat;
  }
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
