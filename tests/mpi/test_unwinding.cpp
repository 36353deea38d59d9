#include <cstdio>
#include <cstring>
#include <thread>

#include "hat/comm/ring_all_reduce.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "mpi_test_main.hpp"

/// test_unwinding <receive | ring | window | barrier>
/// Rank 0 fails with communication under way that nobody will ever complete. The exception must get past everything
/// that owns something of MPI, to the place that ends all ranks. ctest looks for the line that is printed there, and
/// for how soon it comes.
namespace hat {
namespace {

constexpr double kTimeout_s = 1.0;

/// The other ranks: alive, outside MPI, and far too late.
[[noreturn]] void sleep_forever() {
  while (true) std::this_thread::sleep_for(std::chrono::seconds(60));
}

void fail_with_receive(const Communicator& world) {
  std::vector<std::byte> here(1000);
  std::vector<Request> requests;
  requests.push_back(world.start_receive(here, 1, 7));
  const Request alone = world.start_receive(here, 1, 8);
  throw Error("with a receive under way");
}

void fail_with_ring(const Communicator& world) {
  const Communicator ring = world.split(0);
  std::vector<float> values(100'000, 1.0F);  // too long to leave before the other side is there
  RingAllReduce operation(ring, values, 3);
  if (operation.step()) return;
  throw Error("with a ring under way");
}

void fail_with_window(const Communicator& world) {
  const Window window(world, 1024);
  std::vector<std::byte> here(64);
  const Request get = window.start_get(here, 1, 0);
  throw Error("with a window open");
}

void fail_in_barrier(const Communicator& world) {
  const double start_s = now_s();
  try {
    world.wait_barrier(kTimeout_s, "the sleepers");
  } catch (const Error& error) {
    const double took_s = now_s() - start_s;
    if (std::strcmp(error.what(), "waited 1 s (timeout_s) for the sleepers") != 0) std::printf("it says: ");
    if (took_s < kTimeout_s || took_s > kTimeout_s + 2) std::printf("after %.1f s: ", took_s);
    throw;
  }
}

/// What the other ranks have to do with it: collective calls, then nothing more.
void take_part(const std::string& part, const Communicator& world) {
  if (part == "ring") {
    const Communicator ring = world.split(0);
    sleep_forever();
  }
  if (part == "window") {
    const Window window(world, 1024);
    sleep_forever();
  }
  sleep_forever();
}

int fail(const std::string& part) {
  try {
    const MpiEnvironment mpi;
    const Communicator world = Communicator::world();
    if (world.rank() != 0) take_part(part, world);
    if (part == "receive") fail_with_receive(world);
    if (part == "ring") fail_with_ring(world);
    if (part == "window") fail_with_window(world);
    if (part == "barrier") fail_in_barrier(world);
    std::printf("nothing was thrown\n");
  } catch (const Error& error) {
    std::printf("unwound: %s\n", error.what());
  }
  std::fflush(stdout);
  abort_all_ranks(3);
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::fail(argc > 1 ? argv[1] : ""); }
