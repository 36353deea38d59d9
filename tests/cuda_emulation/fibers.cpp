// How a kernel runs: blocks one after the other, each thread of a block a fiber.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulation.hpp"
#include "execution_context.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

/// Fibers get on with neither.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=0"; }  // NOLINT
#endif

namespace cuda_emulation {

namespace {

constexpr int kWarp = 32;
constexpr unsigned int kAllLanes = 0xffffffffU;
constexpr size_t kMostMeetingBytes = 64;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 128 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

struct Copy {
  void* shared;
  const void* global;
  size_t bytes;
  bool fill_with_zeros;
  void run() const {
    if (fill_with_zeros) {
      std::memset(shared, 0, bytes);
    } else {
      std::memcpy(shared, global, bytes);
    }
  }
};

/// Where the lanes of a warp meet. Slots of two meetings: a lane may be one ahead, no further.
struct Warp {
  struct Meeting {
    const char* what = "";
    unsigned int mask = 0;
    unsigned int arrived = 0;
    bool is_computed = false;
    std::array<float, kMeetingFloats> together = {};
    std::array<std::array<unsigned char, kMostMeetingBytes>, kWarp> given = {};
  };
  std::array<Meeting, 2> meetings;
  std::array<int64_t, kWarp> count = {};  // meetings of each lane so far
};

enum class State { ready, at_barrier, in_meeting, done };

struct Fiber {
  Context context;
  char* stack = nullptr;
  State state = State::ready;
  Index index;
  int number = 0;
  std::vector<Copy> copies;        // under way, oldest first
  std::vector<size_t> group_ends;  // in `copies`; what comes after the last is not committed
};

struct Running {
  Launch launch;
  const std::function<void()>* thread = nullptr;
  Index block;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  Fiber* current = nullptr;
  Context scheduler;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  std::exception_ptr failure;
  int alive = 0;
  int at_barrier = 0;
  int holding = 0;       // predicate true at the barrier under way
  int last_holding = 0;  // at the one before
};

Running* running = nullptr;
Order order = Order::ascending;
Counters count;
std::mt19937 shuffler(5);  // NOLINT: the same in every run

void in_order(size_t size, std::vector<size_t>& places) {
  places.resize(size);
  for (size_t i = 0; i < size; ++i) places[i] = order == Order::descending ? size - 1 - i : i;
  if (order == Order::shuffled) std::shuffle(places.begin(), places.end(), shuffler);
}

void switch_to(Fiber& fiber) {
  running->current = &fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&running->scheduler_fake_stack, fiber.stack, kStackBytes);
#endif
  running->scheduler.switch_to(fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(running->scheduler_fake_stack, nullptr, nullptr);
#endif
}

/// Back to the scheduler; returns when the thread may go on.
void give_way(State state) {
  Fiber& fiber = *running->current;
  fiber.state = state;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(state == State::done ? nullptr : &fake_stack, running->scheduler_stack,
                                 running->scheduler_stack_bytes);
#endif
  fiber.context.switch_to(running->scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &running->scheduler_stack, &running->scheduler_stack_bytes);
#endif
}

void end_barrier_if_all_are_there() {
  if (running->at_barrier == 0 || running->at_barrier < running->alive) return;
  running->at_barrier = 0;
  running->last_holding = running->holding;
  running->holding = 0;
  ++count.barriers;
  for (Fiber& fiber : running->fibers) {
    if (fiber.state == State::at_barrier) fiber.state = State::ready;
  }
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &running->scheduler_stack, &running->scheduler_stack_bytes);
#endif
  try {
    (*running->thread)();
    if (!running->current->copies.empty()) {
      throw std::logic_error("a thread ended without waiting for its copies to shared memory");
    }
  } catch (...) {
    if (!running->failure) running->failure = std::current_exception();
  }
  --running->alive;
  give_way(State::done);
}

std::string place(const Index& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

[[noreturn]] void explain_deadlock() {
  int at_barrier = 0;
  int in_meeting = 0;
  for (const Fiber& fiber : running->fibers) {
    at_barrier += fiber.state == State::at_barrier ? 1 : 0;
    in_meeting += fiber.state == State::in_meeting ? 1 : 0;
  }
  throw std::logic_error("block " + place(running->block) + " stands still: " + std::to_string(at_barrier) +
                         " threads wait at a barrier, " + std::to_string(in_meeting) +
                         " in a warp function, for others that never come");
}

void run_block(Running& block, const std::function<void()>& thread) {
  // Stacks are kept from launch to launch: to allocate them costs more than many kernels.
  static std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() < block.fibers.size()) stacks.emplace_back(new char[kStackBytes]);  // NOLINT: not to be cleared
  const Index& size = block.launch.block;
  block.thread = &thread;
  block.shared.assign(block.launch.shared_bytes, 0xff);
  block.shared.shrink_to_fit();
  block.warps.resize((block.fibers.size() + kWarp - 1) / kWarp);
  for (Warp& warp : block.warps) {
    warp.count = {};
    for (Warp::Meeting& meeting : warp.meetings) meeting.mask = meeting.arrived = 0;
  }
  block.alive = static_cast<int>(block.fibers.size());
  block.at_barrier = block.holding = block.last_holding = 0;
  for (size_t i = 0; i < block.fibers.size(); ++i) {
    Fiber& fiber = block.fibers[i];
    fiber.stack = stacks[i].get();
    fiber.state = State::ready;
    fiber.number = static_cast<int>(i);
    fiber.copies.clear();
    fiber.group_ends.clear();
    const auto number = static_cast<unsigned int>(i);
    fiber.index = {.x = number % size.x, .y = number / size.x % size.y, .z = number / size.x / size.y};
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber.stack, kStackBytes);  // what the thread before has left
#endif
    fiber.context.begin(fiber.stack, kStackBytes, fiber_main);
  }
  std::vector<size_t> places;
  while (block.alive > 0) {
    bool any = false;
    in_order(block.fibers.size(), places);
    for (const size_t i : places) {
      if (block.fibers[i].state != State::ready) continue;
      any = true;
      switch_to(block.fibers[i]);
      if (block.failure) std::rethrow_exception(block.failure);
    }
    end_barrier_if_all_are_there();
    if (!any) {
      const bool is_ready = std::any_of(block.fibers.begin(), block.fibers.end(),
                                        [](const Fiber& fiber) { return fiber.state == State::ready; });
      if (!is_ready) explain_deadlock();
    }
  }
}

}  // namespace

void set_order(Order new_order) { order = new_order; }
const Counters& counters() { return count; }

const Index& thread_index() { return running->current->index; }
const Index& block_index() { return running->block; }
const Index& block_size() { return running->launch.block; }
const Index& grid_size() { return running->launch.grid; }
int lane() { return running->current->number % kWarp; }
void* dynamic_shared() { return running->shared.data(); }

void block_barrier() { block_barrier_count(false); }

int block_barrier_count(bool predicate) {
  ++running->at_barrier;
  running->holding += predicate ? 1 : 0;
  give_way(State::at_barrier);
  return running->last_holding;
}

WarpMeeting::WarpMeeting(const char* what, unsigned int mask, const void* mine, size_t size) {
  const int own = lane();
  Warp& warp = running->warps[static_cast<size_t>(running->current->number / kWarp)];
  if (size > kMostMeetingBytes) throw std::logic_error(std::string(what) + ": too large a value");
  if ((mask >> own & 1U) == 0)
    throw std::logic_error(std::string(what) + ": called by a lane that its mask does not name");
  slot_ = static_cast<int>(warp.count[static_cast<size_t>(own)]++ & 1);
  Warp::Meeting& meeting = warp.meetings[static_cast<size_t>(slot_)];
  if (meeting.arrived == 0 || (meeting.arrived & meeting.mask) == meeting.mask) {  // the first of a new one
    meeting.what = what;
    meeting.mask = mask;
    meeting.arrived = 0;
    meeting.is_computed = false;
    if (mask != kAllLanes) {
      for (auto& values : meeting.given) values.fill(0xff);
    }
  }
  if ((meeting.what != what && std::strcmp(meeting.what, what) != 0) || meeting.mask != mask) {
    throw std::logic_error(std::string("lanes of a warp are in different functions: ") + meeting.what + " and " + what);
  }
  if (size > 0) std::memcpy(meeting.given[static_cast<size_t>(own)].data(), mine, size);
  meeting.arrived |= 1U << own;
  if (meeting.arrived != mask) {
    give_way(State::in_meeting);
    return;
  }
  const int first = running->current->number / kWarp * kWarp;
  for (int l = 0; l < kWarp; ++l) {
    const auto number = static_cast<size_t>(first + l);
    if ((mask >> l & 1U) != 0 && l != own && number < running->fibers.size()) {
      running->fibers[number].state = State::ready;
    }
  }
}

const void* WarpMeeting::from(int lane) const {
  const Warp& warp = running->warps[static_cast<size_t>(running->current->number / kWarp)];
  return warp.meetings[static_cast<size_t>(slot_)].given[static_cast<size_t>(lane)].data();
}

float* WarpMeeting::together(bool& is_first) const {
  Warp& warp = running->warps[static_cast<size_t>(running->current->number / kWarp)];
  Warp::Meeting& meeting = warp.meetings[static_cast<size_t>(slot_)];
  is_first = !std::exchange(meeting.is_computed, true);
  return meeting.together.data();
}

void begin_copy(void* shared, const void* global, size_t bytes, bool fill_with_zeros) {
  const Copy copy{shared, global, bytes, fill_with_zeros};
  if (order == Order::descending) copy.run();
  running->current->copies.push_back(copy);
}
void commit_copies() {
  Fiber& fiber = *running->current;
  fiber.group_ends.push_back(fiber.copies.size());
}
void wait_copies(int groups_that_may_remain) {
  Fiber& fiber = *running->current;
  const size_t remain = std::min(static_cast<size_t>(groups_that_may_remain), fiber.group_ends.size());
  const size_t groups = fiber.group_ends.size() - remain;
  if (groups == 0) return;
  const size_t done = fiber.group_ends[groups - 1];
  if (order != Order::descending) {
    for (size_t i = 0; i < done; ++i) fiber.copies[i].run();
  }
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(done));
  fiber.group_ends.erase(fiber.group_ends.begin(), fiber.group_ends.begin() + static_cast<ptrdiff_t>(groups));
  for (size_t& end : fiber.group_ends) end -= done;
}

void run(const Launch& launch, const std::function<void()>& thread) {
  Running block;
  block.launch = launch;
  block.fibers.resize(static_cast<size_t>(launch.block.x) * launch.block.y * launch.block.z);
  Running* const outer = running;
  running = &block;
  ++count.launches;
  try {
    const size_t blocks = static_cast<size_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    std::vector<size_t> places;
    in_order(blocks, places);
    for (const size_t i : places) {
      const auto number = static_cast<unsigned int>(i);
      block.block = {.x = number % launch.grid.x,
                     .y = number / launch.grid.x % launch.grid.y,
                     .z = number / launch.grid.x / launch.grid.y};
      run_block(block, thread);
      ++count.blocks;
      count.threads += static_cast<int64_t>(block.fibers.size());
    }
  } catch (...) {
    running = outer;
    throw;
  }
  running = outer;
}

}  // namespace cuda_emulation
