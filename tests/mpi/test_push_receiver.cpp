#include <map>
#include <set>
#include <thread>

#include "hat/core/error.hpp"
#include "mpi_test_main.hpp"
#include "server/push_receiver.hpp"

namespace hat {
namespace {

constexpr int kReceiver = 0;
constexpr int64_t kLarge = 300'000;  // floats: far above the size that MPI sends without asking

float value_of(int64_t worker, int64_t number, int64_t i) {
  return static_cast<float>(worker * 1'000'000 + number * 1000 + i % 997);
}

/// One worker's side: headers through the mailbox, bodies behind them.
class Pusher {
 public:
  explicit Pusher(const Communicator& world) : world_(world), mailbox_(world, MailTag::to_worker) {}

  void push(int64_t generation, int64_t number, int64_t count) {
    std::vector<float> body(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) body[static_cast<size_t>(i)] = value_of(world_.rank(), number, i);
    mailbox_.post(
        PushHeader{
            .worker = world_.rank(), .sequence_number = number, .generation = generation, .count = count, .units = {7}},
        kReceiver, MailTag::to_server);
    bodies_.push_back(std::move(body));
    sends_.push_back(
        world_.start_send(std::as_bytes(std::span(bodies_.back())), kReceiver, static_cast<int>(MailTag::push_body)));
  }
  void finish() {
    for (Request& send : sends_) send.wait();
    while (!mailbox_.flush()) std::this_thread::yield();
  }

 private:
  const Communicator& world_;
  Mailbox mailbox_;
  std::vector<std::vector<float>> bodies_;
  std::vector<Request> sends_;
};

struct Accepted {
  int64_t worker;
  int64_t generation;
  int64_t number;
};

/// Receives until `pushes` bodies have come, counted or not. Checks every value on the way.
std::vector<Accepted> receive(const Communicator& world, int64_t pushes, int64_t& repeats) {
  Mailbox mailbox(world, MailTag::to_server);
  std::vector<Accepted> accepted;
  PushReceiver receiver(world, [&](const PushHeader& header, std::span<const float> body, double /*travel_s*/) {
    accepted.push_back({.worker = header.worker, .generation = header.generation, .number = header.sequence_number});
    ASSERT_EQ(static_cast<int64_t>(body.size()), header.count);
    ASSERT_EQ(header.units, std::vector<int64_t>{7});
    for (int64_t i = 0; i < header.count; ++i) {
      ASSERT_EQ(body[static_cast<size_t>(i)], value_of(header.worker, header.sequence_number, i)) << "element " << i;
    }
  });
  while (static_cast<int64_t>(accepted.size()) + receiver.repeats_dropped() < pushes) {
    while (const std::unique_ptr<Mail> mail = mailbox.try_receive()) {
      receiver.expect(mail->open<PushHeader>(), mail->source());
    }
    receiver.progress();
    std::this_thread::yield();
  }
  EXPECT_FALSE(receiver.progress()) << "nothing is left";
  repeats = receiver.repeats_dropped();
  return accepted;
}

// Three senders at once, small and large bodies alternating, every third push sent twice.
TEST(PushReceiver, CountsEveryPushOnce) {
  const Communicator world = Communicator::world();
  constexpr int64_t kPushes = 30;
  constexpr int64_t kSent = kPushes + kPushes / 3;
  if (world.rank() != kReceiver) {
    Pusher pusher(world);
    for (int64_t number = 1; number <= kPushes; ++number) {
      const int64_t count = number % 2 == 0 ? number : kLarge / number + world.rank();
      pusher.push(1, number, count);
      if (number % 3 == 0) pusher.push(1, number, count);
    }
    pusher.finish();
  } else {
    int64_t repeats = 0;
    const auto senders = static_cast<int64_t>(world.size()) - 1;
    const std::vector<Accepted> accepted = receive(world, kSent * senders, repeats);
    EXPECT_EQ(repeats, kPushes / 3 * senders);
    std::map<int64_t, int64_t> newest;
    for (const Accepted& push : accepted) {
      EXPECT_EQ(push.number, newest[push.worker] + 1) << "worker " << push.worker;
      newest[push.worker] = push.number;
    }
    EXPECT_EQ(static_cast<int64_t>(newest.size()), senders);
    for (const auto& [worker, number] : newest) EXPECT_EQ(number, kPushes) << "worker " << worker;
  }
  world.barrier();
}

// A small body overtakes a large one, whose sender is not inside MPI for a while: the large one still counts.
TEST(PushReceiver, SmallBodiesMayArriveFirst) {
  const Communicator world = Communicator::world();
  if (world.rank() != kReceiver) {
    Pusher pusher(world);
    pusher.push(1, 1, 10 * kLarge);
    pusher.push(1, 2, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    pusher.push(1, 3, 5);
    pusher.finish();
  } else {
    int64_t repeats = 0;
    const std::vector<Accepted> accepted = receive(world, int64_t{3} * (world.size() - 1), repeats);
    EXPECT_EQ(repeats, 0);
    std::set<std::pair<int64_t, int64_t>> seen;
    for (const Accepted& push : accepted) seen.emplace(push.worker, push.number);
    EXPECT_EQ(static_cast<int>(seen.size()), 3 * (world.size() - 1));
  }
  world.barrier();
}

TEST(PushReceiver, NamesWhatIsMissing) {
  const Communicator world = Communicator::world();
  if (world.rank() == 1) {
    Pusher pusher(world);
    pusher.push(1, 1, 10);
    pusher.push(1, 3, 30);
    pusher.finish();
  } else if (world.rank() == kReceiver) {
    int64_t repeats = 0;
    try {
      receive(world, 2, repeats);
      ADD_FAILURE() << "the second push is not missed";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "push 2 of worker 1 was lost: its push 3, of step 0, is here");
    }
  }
  world.barrier();
}

TEST(PushReceiver, RefusesAnOlderGeneration) {
  const Communicator world = Communicator::world();
  if (world.rank() == 1) {
    Pusher pusher(world);
    pusher.push(1, 1, 10);
    pusher.push(2, 2, 20);
    pusher.push(1, 3, 30);  // leased again to somebody else meanwhile
    pusher.push(2, 3, 40);
    pusher.finish();
  } else if (world.rank() == kReceiver) {
    int64_t repeats = 0;
    const std::vector<Accepted> accepted = receive(world, 4, repeats);
    EXPECT_EQ(repeats, 1);
    ASSERT_EQ(accepted.size(), 3U);
    EXPECT_EQ(accepted[1].generation, 2);
    EXPECT_EQ(accepted[2].number, 3);
    EXPECT_EQ(accepted[2].generation, 2);
  }
  world.barrier();
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
