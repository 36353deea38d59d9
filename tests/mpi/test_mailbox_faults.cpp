#include <thread>

#include "hat/comm/mailbox.hpp"
#include "hat/core/error.hpp"
#include "hat/core/fault.hpp"
#include "mpi_test_main.hpp"

// What a mailbox makes of messages that come twice or never (fault.*).
namespace hat {
namespace {

constexpr int kSender = 1;
constexpr int kReceiver = 0;
constexpr int64_t kMessages = 20;

/// Rank 1 sends reports 0 to 19 under this fault, from two roles in turns. Of rank 0: those that arrived, in that
/// order, until all have or one is missed.
std::vector<int64_t> arrived(const Communicator& world, const FaultConfig& fault, std::string& reason) {
  set_fault(fault, world.rank());
  std::vector<int64_t> units;
  if (world.rank() == kSender) {
    Mailbox worker(world, MailTag::to_worker);
    Mailbox server(world, MailTag::to_server);
    for (int64_t unit = 0; unit < kMessages; ++unit) {
      (unit % 2 == 0 ? worker : server).post(EvaluationReport{.unit = unit}, kReceiver, MailTag::to_server);
    }
    while (!worker.flush() || !server.flush()) std::this_thread::yield();
  } else if (world.rank() == kReceiver) {
    Mailbox mailbox(world, MailTag::to_server);
    try {
      while (std::ssize(units) < kMessages) {
        if (const auto mail = mailbox.try_receive()) units.push_back(mail->open<EvaluationReport>().unit);
      }
      EXPECT_EQ(mailbox.try_receive(), nullptr);
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  world.barrier();
  if (world.rank() == kReceiver) {  // what is left is nobody else's
    while (world.try_receive(static_cast<int>(MailTag::to_server))) continue;
  }
  set_fault({.at = FaultPoint::none, .rank = world.rank()}, world.rank());
  world.barrier();
  return units;
}

TEST(MailboxFaults, WhatComesTwiceCountsOnce) {
  const Communicator world = Communicator::world();
  std::string reason;
  const auto units =
      arrived(world, {.at = FaultPoint::report, .action = FaultAction::duplicate, .rank = kSender, .after = 3}, reason);
  if (world.rank() != kReceiver) return;
  EXPECT_EQ(reason, "");
  ASSERT_EQ(std::ssize(units), kMessages);
  for (int64_t unit = 0; unit < kMessages; ++unit) EXPECT_EQ(units[static_cast<size_t>(unit)], unit);
}

TEST(MailboxFaults, WhatIsMissingIsNamedWhenTheNextIsThere) {
  const Communicator world = Communicator::world();
  std::string reason;
  const auto units =
      arrived(world, {.at = FaultPoint::report, .action = FaultAction::drop, .rank = kSender, .after = 7}, reason);
  if (world.rank() != kReceiver) return;
  // Number 7 of all is number 4 of its role; 8 is of the other role.
  EXPECT_EQ(reason, "a message of rank 1 was lost: its number 5 is here, number 4 is not");
  EXPECT_EQ(units, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 8}));
}

TEST(MailboxFaults, TheFirstIsMissedToo) {
  const Communicator world = Communicator::world();
  std::string reason;
  arrived(world, {.at = FaultPoint::report, .action = FaultAction::drop, .rank = kSender, .after = 0}, reason);
  if (world.rank() == kReceiver) {
    EXPECT_EQ(reason, "a message of rank 1 was lost: its number 2 is here, number 1 is not");
  }
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
