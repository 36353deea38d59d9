#include <algorithm>
#include <numeric>
#include <thread>

#include "hat/core/error.hpp"
#include "mpi_test_main.hpp"
#include "server/push_receiver.hpp"
#include "worker/gradient_sender.hpp"

// Rank 0 is the server, ranks 1 and 2 are workers 0 and 1.

namespace hat {
namespace {

constexpr int64_t kBlock = 1;
constexpr int64_t kStep = 4;

RunPlan plan_with(const std::vector<std::string>& barriers, BarrierPath path) {
  Deck deck;
  deck.model = {.width = 8, .layers = 1, .heads = 2, .mlp_width = 12, .max_length = 16, .vocabulary = 20};
  deck.staleness = 1;
  deck.barriers = barriers;
  deck.barrier_path = path;
  return make_run_plan(deck, plan_roles({0, 0, 0}, 1, Placement::packed));
}

struct Push {
  PushHeader header;
  std::vector<float> values;
};

struct Rank {
  explicit Rank(const RunPlan& run_plan) : plan(run_plan) {
    if (world.rank() == 0) return;
    sender.emplace(plan, Stream(Device{}), world.rank() - 1, mailbox, workers, /*nccl=*/nullptr, waiting, barriers);
  }
  ~Rank() { world.barrier(); }

  int64_t size(int64_t block) const { return plan.layout.blocks[static_cast<size_t>(block)].size; }
  /// The backward pass of a unit through the block adds `value` to every element.
  void add(int64_t block, int64_t unit, int64_t version, float value) {
    sender->begin(block);
    for (int64_t i = 0; i < size(block); ++i) sender->buffer(block)[i] += value;
    sender->note_unit(block, unit, version, /*tokens=*/10);
  }
  void send(int64_t block) { sender->send(block, kStep, /*generation=*/1, /*order=*/0, /*norm=*/-1.0); }
  void finish() {
    sender->finish();
    waiting.until(Activity::other, "mail to leave", [this] { return mailbox.flush(); });
  }

  /// The server's side: pushes until so many elements have come, and for a moment longer.
  std::vector<Push> receive(int64_t elements) {
    std::vector<Push> pushes;
    Mailbox mail_of_server(world, MailTag::to_server);
    PushReceiver receiver(world, [&](const PushHeader& header, std::span<const float> body, double /*travel_s*/) {
      pushes.push_back({.header = header, .values = {body.begin(), body.end()}});
      elements -= std::ssize(body);
    });
    double end_s = now_s() + 20;
    bool complete = false;
    while (now_s() < end_s) {
      while (const std::unique_ptr<Mail> mail = mail_of_server.try_receive()) {
        receiver.expect(mail->open<PushHeader>(), mail->source());
      }
      receiver.progress();
      if (elements <= 0 && !std::exchange(complete, true)) end_s = now_s() + 0.1;
      std::this_thread::yield();
    }
    EXPECT_EQ(elements, 0);
    std::ranges::sort(pushes, {}, [](const Push& push) { return std::pair(push.header.worker, push.header.begin); });
    return pushes;
  }

  RunPlan plan;
  Communicator world = Communicator::world();
  Communicator workers = world.split(world.rank() > 0 ? 0 : -1);
  Mailbox mailbox{world, MailTag::to_worker};
  Account account;
  BarrierSchedule barriers{plan};
  std::optional<GradientSender> sender;
  Waiting waiting{"worker", 20, account, [this] {
                    mailbox.flush();
                    if (sender) sender->progress();
                  }};
};

bool all_are(const std::vector<float>& values, float value) {
  return std::ranges::all_of(values, [value](float v) { return v == value; });
}

TEST(GradientSender, UnitsOfAStepLeaveAsOneSum) {
  Rank rank(plan_with({"none"}, BarrierPath::ring));
  if (rank.world.rank() == 0) {
    const std::vector<Push> pushes = rank.receive(rank.size(kBlock));
    ASSERT_EQ(pushes.size(), 1U);
    EXPECT_TRUE(all_are(pushes[0].values, 3.0F));
    EXPECT_EQ(pushes[0].header.units, (std::vector<int64_t>{7, 9}));
    EXPECT_EQ(pushes[0].header.tokens, 20);
    EXPECT_EQ(pushes[0].header.base_version, 3) << "the oldest that went into it";
    EXPECT_EQ(pushes[0].header.step, kStep);
    EXPECT_FALSE(pushes[0].header.complete);
  } else if (rank.world.rank() == 1) {
    rank.add(kBlock, 7, 4, 1.0F);
    rank.add(kBlock, 9, 3, 2.0F);
    rank.send(kBlock);
    rank.finish();
    EXPECT_EQ(rank.sender->pushed_bytes(), 4 * rank.size(kBlock));
    rank.sender->begin(kBlock);
    EXPECT_EQ(rank.sender->buffer(kBlock)[0], 0.0F) << "cleared for the next step";
  }
}

TEST(GradientSender, WhatIsDiscardedIsNotSent) {
  Rank rank(plan_with({"none"}, BarrierPath::ring));
  if (rank.world.rank() == 0) {
    const std::vector<Push> pushes = rank.receive(rank.size(kBlock));
    ASSERT_EQ(pushes.size(), 1U);
    EXPECT_TRUE(all_are(pushes[0].values, 2.0F));
    EXPECT_EQ(pushes[0].header.units, std::vector<int64_t>{7});
    EXPECT_EQ(pushes[0].header.tokens, 10);
    EXPECT_EQ(pushes[0].header.base_version, 4);
  } else if (rank.world.rank() == 1) {
    rank.add(kBlock, 7, 2, 1.0F);
    rank.sender->discard();
    rank.add(kBlock, 7, 4, 2.0F);
    rank.send(kBlock);
    rank.finish();
  }
}

TEST(GradientSender, WorkersWithoutAUnitEnterRingsWithZeros) {
  Rank rank(plan_with({"all"}, BarrierPath::ring));
  const auto blocks = static_cast<int64_t>(rank.plan.layout.blocks.size());
  int64_t elements = 0;
  for (int64_t block = 0; block < blocks; ++block) elements += rank.size(block);
  if (rank.world.rank() == 0) {
    const std::vector<Push> pushes = rank.receive(elements);
    std::vector<int64_t> seen(static_cast<size_t>(blocks), 0);
    for (const Push& push : pushes) {
      EXPECT_TRUE(all_are(push.values, static_cast<float>(push.header.block + 1)));
      EXPECT_TRUE(push.header.complete);
      EXPECT_EQ(push.header.base_version, kStep);
      const bool has_unit = push.header.worker == 0;
      EXPECT_EQ(push.header.units, has_unit ? std::vector<int64_t>{7} : std::vector<int64_t>{});
      EXPECT_EQ(push.header.tokens, has_unit ? 10 : 0);
      seen[static_cast<size_t>(push.header.block)] += push.header.count;
    }
    EXPECT_EQ(std::ssize(pushes), 2 * blocks) << "each worker pushes a share of each sum";
    for (int64_t block = 0; block < blocks; ++block) EXPECT_EQ(seen[static_cast<size_t>(block)], rank.size(block));
  } else if (rank.world.rank() == 1) {
    for (int64_t block = blocks - 1; block >= 0; --block) {
      rank.add(block, 7, kStep, static_cast<float>(block + 1));
      rank.send(block);
    }
    rank.finish();
    EXPECT_FALSE(rank.sender->ring_gathers());
  } else {
    for (int64_t i = 0; i < rank.size(kBlock); ++i) rank.sender->buffer(kBlock)[i] = 99;  // of the step before
    rank.sender->enter_rings_with_zeros(kStep);
    rank.finish();
  }
}

TEST(GradientSender, BarriersByWayOfTheServerHaveNoRings) {
  Rank rank(plan_with({"all"}, BarrierPath::server));
  EXPECT_FALSE(rank.barriers.has_rings(kStep));
  if (rank.world.rank() == 0) {
    const std::vector<Push> pushes = rank.receive(rank.size(kBlock));
    ASSERT_EQ(pushes.size(), 1U);
    EXPECT_EQ(pushes[0].header.worker, 0);
    EXPECT_TRUE(all_are(pushes[0].values, 5.0F));
    EXPECT_FALSE(pushes[0].header.complete) << "the server counts the tokens";
    EXPECT_EQ(pushes[0].header.tokens, 10);
  } else if (rank.world.rank() == 1) {
    rank.add(kBlock, 7, kStep, 5.0F);
    rank.send(kBlock);
    rank.finish();
  } else {
    rank.sender->enter_rings_with_zeros(kStep);
    rank.finish();
    EXPECT_EQ(rank.sender->pushed_bytes(), 0);
  }
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
