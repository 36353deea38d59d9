#include <cstring>
#include <thread>

#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "mpi_test_main.hpp"

namespace hat {
namespace {

std::string text_of(int rank) { return std::string(static_cast<size_t>(rank * rank), static_cast<char>('a' + rank)); }

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Incoming wait_for_message(const Communicator& communicator, int tag) {
  while (true) {
    std::optional<Incoming> incoming = communicator.try_receive(tag);
    if (incoming) return std::move(*incoming);
    std::this_thread::yield();
  }
}

TEST(Communicator, TextsOfAllLengthsTravel) {
  const Communicator world = Communicator::world();
  const std::vector<std::string> texts = world.all_gather(text_of(world.rank()));  // rank 0 gives an empty one
  ASSERT_EQ(static_cast<int>(texts.size()), world.size());
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(texts[static_cast<size_t>(rank)], text_of(rank));
  for (int root = 0; root < world.size(); ++root) {
    EXPECT_EQ(world.broadcast("from " + std::to_string(world.rank()), root), "from " + std::to_string(root));
    EXPECT_EQ(world.broadcast(world.rank() == root ? "" : "longer than the root's", root), "");
  }
}

TEST(Communicator, ReducesOverAllRanks) {
  const Communicator world = Communicator::world();
  const int p = world.size();
  EXPECT_EQ(world.all_reduce_max(-5 - world.rank()), -5);
  EXPECT_EQ(world.all_reduce_max((int64_t{1} << 40) + world.rank()), (int64_t{1} << 40) + p - 1);
  EXPECT_EQ(world.all_reduce_sum(0.5 * world.rank()), 0.25 * p * (p - 1));
}

TEST(Communicator, SplitsByColourInRankOrder) {
  const Communicator world = Communicator::world();
  const int rank = world.rank();
  const Communicator parity = world.split(rank % 2);
  EXPECT_EQ(parity.rank(), rank / 2);
  EXPECT_EQ(parity.size(), (world.size() + 1 - rank % 2) / 2);
  const Communicator without_last = world.split(rank == world.size() - 1 ? -1 : 4);
  EXPECT_EQ(without_last.size(), rank == world.size() - 1 ? 0 : world.size() - 1);
  if (without_last.size() > 0) {
    EXPECT_EQ(without_last.all_reduce_max(rank), world.size() - 2);
  }
}

// A message in one communicator is not seen in another, whatever its tag.
TEST(Communicator, CommunicatorsDoNotMixMessages) {
  const Communicator world = Communicator::world();
  const Communicator other = world.split(0);
  const int next = (world.rank() + 1) % world.size();
  const std::string in_other = "other";
  const std::string in_world = "world";
  Request first = other.start_send(bytes_of(in_other), next, 5);
  Request second = world.start_send(bytes_of(in_world), next, 5);
  EXPECT_EQ(wait_for_message(world, 5).data.size(), 5U);
  EXPECT_FALSE(world.try_receive(5).has_value());
  const Incoming incoming = wait_for_message(other, 5);
  EXPECT_EQ(std::memcmp(incoming.data.data(), "other", 5), 0);
  first.wait();
  second.wait();
}

TEST(Communicator, MessagesKeepTheirOrderAndTag) {
  const Communicator world = Communicator::world();
  constexpr int kMessages = 50;
  EXPECT_FALSE(world.try_receive(9).has_value());
  world.barrier();
  std::vector<std::string> texts;
  for (int i = 0; i < kMessages; ++i)
    texts.push_back(std::string(static_cast<size_t>(i % 3 * 20000), 'x') + std::to_string(i));
  std::vector<Request> sends;
  for (int to = 0; to < world.size(); ++to) {  // to itself too: a rank may be server and worker
    for (const std::string& text : texts) sends.push_back(world.start_send(bytes_of(text), to, 9));
  }
  std::vector<size_t> next(static_cast<size_t>(world.size()), 0);
  for (int i = 0; i < kMessages * world.size(); ++i) {
    const Incoming incoming = wait_for_message(world, 9);
    const std::string& expected = texts[next[static_cast<size_t>(incoming.source)]++];
    ASSERT_EQ(std::string(reinterpret_cast<const char*>(incoming.data.data()), incoming.data.size()), expected);
    EXPECT_EQ(incoming.tag, 9);
    EXPECT_FALSE(world.try_receive(8).has_value());
  }
  for (Request& send : sends) send.wait();
  world.barrier();
}

TEST(Communicator, EmptyTransfersComplete) {
  const Communicator world = Communicator::world();
  Request nothing;
  EXPECT_TRUE(nothing.test());
  Request receive = world.start_receive({}, (world.rank() + world.size() - 1) % world.size(), 2);
  Request send = world.start_send({}, (world.rank() + 1) % world.size(), 2);
  while (!receive.test() || !send.test()) std::this_thread::yield();
  EXPECT_TRUE(receive.test()) << "a completed request stays complete";
}

TEST(Communicator, AWaitedBarrierLetsNobodyPassBeforeTheLastHasCome) {
  const Communicator world = Communicator::world();
  world.barrier();
  const double start_s = now_s();
  if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  world.wait_barrier(/*timeout_s=*/60, "the last");
  EXPECT_GE(now_s() - start_s, 0.25);  // the barrier before lets ranks go a little apart
  for (int i = 0; i < 20; ++i) world.wait_barrier(60, "the others");
  world.barrier();
}

TEST(Communicator, ThisMachineIsOneNode) {
  const Communicator world = Communicator::world();
  EXPECT_EQ(world.node_of_rank(), std::vector<int>(static_cast<size_t>(world.size()), 0));
}

TEST(Communicator, ErrorsCarryTheWordsOfMpi) {
  const Communicator world = Communicator::world();
  const std::string text = "lost";
  try {
    world.start_send(bytes_of(text), world.size(), 1);
    FAIL() << "a send to a rank that does not exist was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("MPI_Isend failed: MPI_ERR_RANK"), std::string::npos) << error.what();
  }
}

// Every second rank owns nothing, as workers do.
TEST(Window, GetsReadWhatTheOwnerStored) {
  const Communicator world = Communicator::world();
  constexpr int64_t kBytes = 4096;
  const bool owner = world.rank() % 2 == 0;
  const Window window(world, owner ? kBytes : 0);
  if (owner) {
    for (int64_t i = 0; i < kBytes; ++i) window.local()[i] = static_cast<std::byte>((i * 3 + world.rank()) % 251);
    window.sync();
  }
  world.barrier();
  for (int target = 0; target < world.size(); target += 2) {
    for (const int64_t offset : {int64_t{0}, int64_t{17}, kBytes - 64}) {
      std::vector<std::byte> read(64);
      Request get = window.start_get(read, target, offset);
      while (!get.test()) window.sync();
      for (int64_t i = 0; i < 64; ++i) {
        ASSERT_EQ(read[static_cast<size_t>(i)], static_cast<std::byte>(((offset + i) * 3 + target) % 251));
      }
    }
    std::vector<std::byte> none;
    Request get = window.start_get(none, target, 0);
    EXPECT_TRUE(get.test());
  }
  world.barrier();
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
