#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "hat/comm/communicator.hpp"
#include "hat/comm/mpi_environment.hpp"
#include "hat/comm/rank_watch.hpp"
#include "hat/core/clock.hpp"

// Ranks die one after the other, each in another way, while the others are in a collective: these notice, agree on who
// is left, and go on without them. Started with the launcher's recovery enabled; the line printed at the end is looked
// for.

namespace hat {
namespace {

constexpr double kFrozenAfter_s = 1;
constexpr double kPatience_s = 10;

[[noreturn]] void end(const char* line) {
  if (line != nullptr) std::printf("%s\n", line);
  std::fflush(stdout);
  std::_Exit(0);  // MPI_Finalize would wait for the dead
}

/// A rank that has left a collective may have messages of it still to deliver, which die with it.
void die(int signal) {
  constexpr unsigned kPause_us = 500'000;
  ::usleep(kPause_us);
  ::kill(::getpid(), signal);
}

/// The members of `world` but those that a collective is waited for in vain for. `watch` becomes theirs.
Communicator* without_the_lost(const Communicator& world, std::unique_ptr<RankWatch>& watch, std::set<int> expected) {
  std::set<int> lost;
  const double begin_s = now_s();
  try {
    world.all_reduce_max(1);
    end("the collective came to an end");
  } catch (const RankLost& noticed) {
    lost = noticed.ranks();
  }
  if (lost != expected) {
    for (const int rank : lost) std::printf("rank %d of %d was noticed\n", rank, world.size());
    end("other ranks were noticed");
  }
  const std::set<int> members = agree_on_survivors(world, *watch, lost, kPatience_s);
  watch->give_up(lost);
  if (!watch->describe_gone().empty()) end("somebody else is said to be gone");
  auto* survivors = new Communicator(world.subset({members.begin(), members.end()}));
  if (survivors->size() != world.size() - 1) end("another number of survivors");
  if (now_s() - begin_s > kFrozenAfter_s + 5) end("it took long");
  watch = std::make_unique<RankWatch>(*survivors, *watch.release(), members);
  survivors->look_while_waiting([seen = watch.get()] { seen->throw_if_lost(); });
  return survivors;
}

void go_through() {
  const auto* mpi = new MpiEnvironment;  // never ended
  (void)mpi;
  const auto* world = new Communicator(Communicator::world());
  const int rank = world->rank();
  auto watch = std::make_unique<RankWatch>(*world, kFrozenAfter_s);
  world->look_while_waiting([seen = watch.get()] { seen->throw_if_lost(); });
  if (world->all_reduce_max(rank) != 3) end("not four ranks");

  if (rank == 2) die(SIGKILL);
  const Communicator* three = without_the_lost(*world, watch, {2});
  if (three->rank() != (rank == 3 ? 2 : rank)) end("other ranks");
  if (three->all_reduce_max(rank) != 3) end("the survivors cannot reduce");

  if (rank == 0) die(SIGSTOP);  // who would lead the others
  const Communicator* two = without_the_lost(*three, watch, {0});
  if (two->all_reduce_max(-rank) != -1 || two->broadcast(rank == 1 ? "yes" : "", 0) != "yes") end("not ranks 1 and 3");
  end(two->rank() == 0 ? "two of four went on" : nullptr);
}

}  // namespace
}  // namespace hat

int main() {
  hat::go_through();
  return 0;
}
