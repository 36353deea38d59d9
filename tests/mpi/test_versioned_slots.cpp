#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <thread>

#include "hat/comm/versioned_slots.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/random.hpp"
#include "mpi_test_main.hpp"

// Ranks 0 and 1 are servers, the others pull.

namespace hat {
namespace {

constexpr int kServers = 2;
constexpr int64_t kSlots = 3;
constexpr int64_t kAcceptedPulls = 100'000;  // of all pullers together
constexpr int kDoneTag = 21;
constexpr int kTakenTag = 22;

PullCheck check_of_this_run = PullCheck::verify;
PullFormat format_of_this_run = PullFormat::fp32;

/// Every value of a version tells which version, part and element it is: exactly in fp32 (all below 2^24); in bf16 by
/// one of the 16,384 numbers below 2, another one in each version until they are used up. Cheap: the less time servers
/// and pullers spend on the values, the more often they meet.
float value_of(int64_t version, int64_t part, int64_t i) {
  if (format_of_this_run == PullFormat::bf16) {
    return to_float(bfloat16{static_cast<uint16_t>((version * 509 + part * 131 + i * 7) & 0x3fff)});
  }
  return static_cast<float>(version % 16'000 * 1024 + (part * 131 + i * 7) % 1024);
}

/// What the owner has where pullers get `value`: in bf16 most often something that is rounded to it.
float owned(float value, int64_t i) {
  if (format_of_this_run == PullFormat::fp32) return value;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | static_cast<uint32_t>(i * 37 & 0x7fff));
}

constexpr size_t kOwnBlock = 0;  // lies on server 0 alone, which publishes it at its own pace

/// Block 0 lies on server 0 in two parts; block 1 is small, block 2 some pages: both on both servers.
struct Layout {
  std::vector<PartSlots> parts;
  std::vector<std::vector<size_t>> parts_of_block{{0, 1}, {2, 3}, {4, 5, 6}};
  std::vector<int64_t> window_bytes = std::vector<int64_t>(kServers, 0);

  Layout() {
    const std::vector<std::pair<int, int64_t>> owner_and_count{{0, 37},    {0, 1500}, {0, 1},   {1, 21},
                                                               {0, 12000}, {0, 5},    {1, 9001}};
    for (const auto& [server, count] : owner_and_count) {
      int64_t& used = window_bytes[static_cast<size_t>(server)];
      parts.push_back(
          {.server_rank = server, .offset = used, .count = count, .slots = kSlots, .format = format_of_this_run});
      used += parts.back().size_bytes();
    }
  }
  int64_t bytes_on(int rank) const { return rank < kServers ? window_bytes[static_cast<size_t>(rank)] : 0; }
  size_t blocks() const { return parts_of_block.size(); }
  int64_t body_bytes() const {
    int64_t bytes = 0;
    for (const PartSlots& part : parts) bytes += part.count * (format_of_this_run == PullFormat::fp32 ? 4 : 2);
    return bytes;
  }
};

/// The parts of one server.
class Publisher {
 public:
  Publisher(const Layout& layout, const Window& window, int server) : window_(&window), parts_(layout.blocks()) {
    for (size_t block = 0; block < layout.blocks(); ++block) {
      for (const size_t part : layout.parts_of_block[block]) {
        if (layout.parts[part].server_rank != server) continue;
        parts_[block].emplace_back(static_cast<int64_t>(part), SlotPublisher(window, layout.parts[part]));
      }
    }
  }

  /// MPI makes progress in the middle of every body: over TCP that is when others can see it half-written (in bf16 only
  /// overwritten as a whole, between the header and the body that they read).
  void publish(size_t block, int64_t version) {
    for (auto& [part, slots] : parts_[block]) {
      const std::span<float> values = slots.begin(version);
      const auto fill = [&, number = part](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          values[static_cast<size_t>(i)] = owned(value_of(version, number, i), i);
        }
      };
      const auto count = static_cast<int64_t>(values.size());
      fill(0, count / 2);
      window_->sync();
      fill(count / 2, count);
      slots.publish(version);
      EXPECT_EQ(slots.latest(), version);
      EXPECT_EQ(slots.values().data(), values.data()) << "the owner's values are not those it wrote";
    }
  }
  void publish_all(int64_t version) {
    for (size_t block = 0; block < parts_.size(); ++block) publish(block, version);
  }

 private:
  const Window* window_;
  std::vector<std::vector<std::pair<int64_t, SlotPublisher>>> parts_;  // by block: (number of the part, its slots)
};

/// One block in the memory of a puller.
class Copy {
 public:
  Copy(const Layout& layout, size_t block) {
    for (const size_t part : layout.parts_of_block[block]) {
      parts_.push_back(static_cast<int64_t>(part));
      slots_.push_back(layout.parts[part]);
      values_.emplace_back(static_cast<size_t>(layout.parts[part].count), -1.0F);
    }
  }
  std::vector<SlotPull::Target> targets() {
    std::vector<SlotPull::Target> targets;
    for (size_t i = 0; i < slots_.size(); ++i) targets.push_back({.part = slots_[i], .values = values_[i].data()});
    return targets;
  }
  /// All values are those of `version`.
  bool is_whole(int64_t version) const {
    for (size_t part = 0; part < values_.size(); ++part) {
      for (size_t i = 0; i < values_[part].size(); ++i) {
        if (values_[part][i] != value_of(version, parts_[part], static_cast<int64_t>(i))) return false;
      }
    }
    return true;
  }
  bool untouched() const { return values_[0][0] == -1.0F; }

 private:
  std::vector<int64_t> parts_;
  std::vector<PartSlots> slots_;
  std::vector<std::vector<float>> values_;
};

void finish(SlotPull& pull) {
  while (!pull.step()) std::this_thread::yield();
}

void tell_servers(const Communicator& world, int tag, int64_t value) {
  for (int server = 0; server < kServers; ++server) {
    world.start_send(std::as_bytes(std::span(&value, 1)), server, tag).wait();
  }
}

/// Bursts and rests of random length. Without rests a puller whose read takes longer than two updates would never end;
/// without bursts nothing would be overwritten under a read.
class Bursts {
 public:
  explicit Bursts(int server) : stream_(static_cast<uint64_t>(server)) {}
  bool publishing() {
    if (now_s() >= change_s_) {
      publishing_ = !publishing_;
      change_s_ = now_s() + 1e-3 * random_uniform(3, stream_, counter_++);
    }
    return publishing_;
  }

 private:
  uint64_t stream_;
  uint64_t counter_ = 0;
  bool publishing_ = false;
  double change_s_ = 0;
};

/// Publishes as fast as it can, in bursts, until every puller is done. In the blocks that lie on both servers these
/// keep within two versions of each other: further apart, no version would be held by both.
void publish_in_bursts(const Communicator& world, const Layout& layout, const Window& window, Publisher& publisher) {
  const int server = world.rank();
  const PartSlots& other_part = layout.parts[layout.parts_of_block[2].at(server == 0 ? 2 : 1)];  // published last
  ASSERT_EQ(other_part.server_rank, 1 - server);
  int64_t own_version = 0;
  int64_t version = 0;
  int64_t others_latest = 0;
  int done = 0;
  Bursts bursts(server);
  std::optional<Request> look;
  while (done < world.size() - kServers) {
    if (world.try_receive(kDoneTag)) ++done;
    const bool publishing = bursts.publishing();
    if (publishing && server == 0) publisher.publish(kOwnBlock, ++own_version);
    if (publishing && version <= others_latest + 1) {
      ++version;
      for (const size_t block : {1, 2}) publisher.publish(block, version);
    }
    if (!look) {
      look = window.start_get(std::as_writable_bytes(std::span(&others_latest, 1)), 1 - server, other_part.offset);
    }
    if (look->test()) look.reset();
    window.sync();
  }
}

struct PullResult {
  PullCounters counters;
  int64_t corrupt = 0;
  int64_t last_version = 0;
};

/// Pulls all blocks again and again, at the same time, `wanted_pulls` times and until a pull met an update: how soon
/// that is depends on how the machine lets servers and pullers run.
PullResult pull_as_fast_as_possible(const Layout& layout, const Window& window, int64_t wanted_pulls) {
  PullResult result;
  std::vector<Copy> copies;
  for (size_t block = 0; block < layout.blocks(); ++block) copies.emplace_back(layout, block);
  std::vector<std::optional<SlotPull>> pulls(layout.blocks());
  std::vector<int64_t> versions(layout.blocks(), 0);
  const auto done = [&] {
    const bool met = result.counters.rejected + result.corrupt > 0;
    return result.counters.accepted >= (met ? wanted_pulls : 20 * wanted_pulls);
  };
  for (int64_t idle_rounds = 0; !done(); ++idle_rounds) {
    for (size_t block = 0; block < pulls.size(); ++block) {
      if (!pulls[block]) {
        // Now and then something newer than it has, so that servers and pullers go on together.
        const int64_t newer = result.counters.accepted % 32 == 0 ? 1 : 0;
        pulls[block].emplace(window, copies[block].targets(), versions[block] + newer, SlotPull::Rule::freshest,
                             /*have=*/-1, result.counters, check_of_this_run);
      }
      if (!pulls[block]->step()) continue;
      EXPECT_GE(pulls[block]->version(), versions[block]) << "older than was asked for";
      versions[block] = pulls[block]->version();
      if (!copies[block].is_whole(versions[block])) ++result.corrupt;
      pulls[block].reset();
      idle_rounds = 0;
    }
    if (idle_rounds > 20) std::this_thread::yield();
  }
  for (auto& pull : pulls) {
    if (pull) finish(*pull);
  }
  result.last_version = *std::max_element(versions.begin(), versions.end());
  return result;
}

TEST(VersionedSlots, PullsWhileServersPublish) {
  const Communicator world = Communicator::world();
  const Layout layout;
  const Window window(world, layout.bytes_on(world.rank()));
  std::optional<Publisher> publisher;
  if (world.rank() < kServers) publisher.emplace(layout, window, world.rank()).publish_all(0);
  world.barrier();
  const int pullers = world.size() - kServers;
  PullResult result;
  if (publisher) {
    publish_in_bursts(world, layout, window, *publisher);
  } else {
    result = pull_as_fast_as_possible(layout, window, kAcceptedPulls / pullers);
    tell_servers(world, kDoneTag, 0);
  }
  const auto total = [&world](int64_t value) {
    return static_cast<int64_t>(world.all_reduce_sum(static_cast<double>(value)));
  };
  const int64_t accepted = total(result.counters.accepted);
  const int64_t rejected = total(result.counters.rejected);
  const int64_t polls = total(result.counters.polls);
  const int64_t corrupt = total(result.corrupt);
  const int64_t versions = world.all_reduce_max(result.last_version);
  if (world.rank() == 0) {
    std::printf("%ld pulls accepted, %ld bodies rejected, %ld polls, %ld versions\n", accepted, rejected, polls,
                versions);
  }
  EXPECT_EQ(corrupt, 0) << corrupt << " torn or mixed blocks were accepted";
  EXPECT_GE(accepted, kAcceptedPulls);
  EXPECT_GT(versions, 1000) << "the servers hardly published";
  EXPECT_GT(rejected, 0) << "the check was never needed: this test shows nothing";
}

/// Every puller takes every version; a slot is reused only when all pullers have told that they took what it held.
TEST(VersionedSlots, ExactPullsGetEveryVersion) {
  const Communicator world = Communicator::world();
  const Layout layout;
  const Window window(world, layout.bytes_on(world.rank()));
  constexpr int64_t kVersions = 500;
  if (world.rank() < kServers) {
    Publisher publisher(layout, window, world.rank());
    world.barrier();
    std::vector<int64_t> taken(static_cast<size_t>(world.size()), -1);
    const auto all_took = [&](int64_t version) {
      return std::all_of(taken.begin() + kServers, taken.end(), [version](int64_t t) { return t >= version; });
    };
    for (int64_t version = 0; version < kVersions || !all_took(kVersions - 1);) {
      if (const std::optional<Incoming> incoming = world.try_receive(kTakenTag)) {
        std::memcpy(&taken[static_cast<size_t>(incoming->source)], incoming->data.data(), sizeof(int64_t));
      }
      if (version < kVersions && all_took(version - kSlots)) publisher.publish_all(version++);
      window.sync();
      std::this_thread::yield();
    }
  } else {
    world.barrier();
    PullCounters counters;
    for (int64_t version = 0; version < kVersions; ++version) {
      for (size_t block = 0; block < layout.blocks(); ++block) {
        Copy copy(layout, block);
        SlotPull pull(window, copy.targets(), version, SlotPull::Rule::exact, /*have=*/-1, counters, PullCheck::verify);
        finish(pull);
        ASSERT_EQ(pull.version(), version);
        ASSERT_TRUE(copy.is_whole(version)) << "version " << version << " of block " << block;
      }
      tell_servers(world, kTakenTag, version);
    }
    EXPECT_EQ(counters.accepted, static_cast<int64_t>(layout.blocks()) * kVersions);
    EXPECT_EQ(counters.rejected, 0) << "a slot was reused while its version was needed";
    EXPECT_EQ(counters.bytes, kVersions * layout.body_bytes());
  }
  world.barrier();
}

// The publishers are at rest: what a pull does is known in advance.
TEST(VersionedSlots, RulesAtRest) {
  const Communicator world = Communicator::world();
  const Layout layout;
  const Window window(world, layout.bytes_on(world.rank()));
  if (world.rank() < kServers) {
    Publisher publisher(layout, window, world.rank());
    for (int64_t version = 0; version < 6; ++version) {
      if (version < 5 || world.rank() == 0) publisher.publish_all(version);  // server 1 is one version behind
    }
  }
  world.barrier();
  if (world.rank() >= kServers) {
    PullCounters counters;
    Copy copy(layout, 2);
    SlotPull freshest(window, copy.targets(), 2, SlotPull::Rule::freshest, /*have=*/3, counters);
    finish(freshest);
    EXPECT_EQ(freshest.version(), 4) << "the newest version that all parts hold";
    EXPECT_TRUE(copy.is_whole(4));
    EXPECT_EQ(counters.accepted, 1);

    Copy same(layout, 2);
    SlotPull nothing_newer(window, same.targets(), 2, SlotPull::Rule::freshest, /*have=*/4, counters);
    finish(nothing_newer);
    EXPECT_EQ(nothing_newer.version(), 4);
    EXPECT_TRUE(same.untouched());
    EXPECT_EQ(counters.accepted, 1) << "nothing was taken";

    Copy exact(layout, 2);
    SlotPull held(window, exact.targets(), 3, SlotPull::Rule::exact, /*have=*/-1, counters);
    finish(held);
    EXPECT_TRUE(exact.is_whole(3));

    // Versions 0 to 2 have been overwritten on server 0, 0 and 1 on server 1.
    for (const int64_t gone : {0, 1, 2}) {
      SlotPull late(window, exact.targets(), gone, SlotPull::Rule::exact, /*have=*/-1, counters);
      EXPECT_THROW(finish(late), Error) << "version " << gone;
    }
    const int64_t polls = counters.polls;
    for (const SlotPull::Rule rule : {SlotPull::Rule::exact, SlotPull::Rule::freshest}) {
      SlotPull early(window, exact.targets(), 5, rule, /*have=*/-1, counters);
      for (int i = 0; i < 200; ++i) ASSERT_FALSE(early.step()) << "version 5 is not whole yet";
    }
    EXPECT_GT(counters.polls, polls);
    EXPECT_EQ(counters.rejected, 0);
  }
  world.barrier();
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) {
  return hat::test::run_mpi_tests(argc, argv, [](int count, char** arguments) {
    for (int i = 1; i < count; ++i) {
      if (std::strcmp(arguments[i], "off") == 0) hat::check_of_this_run = hat::PullCheck::off;
      if (std::strcmp(arguments[i], "bf16") == 0) hat::format_of_this_run = hat::PullFormat::bf16;
    }
  });
}
