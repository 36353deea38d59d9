#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_emulation.hpp"
#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

/// Fibers get on with neither.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=0"; }  // NOLINT
#endif

#if defined(__x86_64__)
// Changes stacks: what a call must keep goes on the old one, and comes from the new one. (swapcontext makes two system
// calls, and under AddressSanitizer clears the shadow of a whole stack, each time.)
extern "C" void hat_switch_stack(void** old_stack, void* new_stack);
asm(R"(
.text
.globl hat_switch_stack
.type hat_switch_stack, @function
hat_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hat_switch_stack, .-hat_switch_stack
)");
#endif

namespace cuda_emulation {

namespace {

#if defined(__x86_64__)
/// Where a thread of execution stands.
class Context {
 public:
  /// Begins with `main`, which never returns, on its own stack.
  void begin(char* stack, size_t bytes, void (*main)()) {
    constexpr size_t kRegisters = 6;
    auto top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top) - 2;  // a call leaves the stack at 8 modulo 16
    words[0] = reinterpret_cast<void*>(main);
    words[1] = nullptr;
    top_ = words - kRegisters;
    std::fill_n(static_cast<void**>(top_), kRegisters, nullptr);
  }
  void switch_to(Context& other) { hat_switch_stack(&top_, other.top_); }

 private:
  void* top_ = nullptr;
};
#else
class Context {
 public:
  void begin(char* stack, size_t bytes, void (*main)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, main, 0);
  }
  void switch_to(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_ = {};
};
#endif

constexpr int kWarp = 32;
constexpr unsigned int kAllLanes = 0xffffffffU;
constexpr size_t kMostMeetingBytes = 64;
constexpr unsigned int kMostThreads = 1024;
constexpr size_t kShared = 48 * 1024;  // without cudaFuncSetAttribute
constexpr size_t kMostShared = 227 * 1024;
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

// --- The runtime
// -------------------------------------------------------------------------------------------------------
namespace {
using cuda_emulation::Launch;

struct Work {
  std::function<bool()> run;    // false: not done yet, to be called again
  cudaEvent_t event = nullptr;  // instead: it is reached
  int64_t record = 0;           // which recording of it
};
}  // namespace

struct cudaStreamOfEmulation {
  std::deque<Work> queue;
  int device = -1;  // -1: the default stream, of whichever is current
};
struct cudaEventOfEmulation {
  int device = 0;
  cudaStream_t stream = nullptr;
  int64_t recorded = 0;
  int64_t reached = 0;
};

namespace {
cudaStreamOfEmulation default_stream;
std::vector<cudaStream_t> streams{&default_stream};
struct Free {
  void operator()(void* memory) const noexcept { std::free(memory); }  // NOLINT
};
constexpr int kHost = -1;
struct Memory {
  std::unique_ptr<void, Free> data;
  size_t bytes;
  int device;  // or kHost: page-locked
};
std::map<void*, Memory> memories;
std::map<const void*, size_t> registered;  // memory of the host that was made page-locked, and its bytes
int sums_under_way = 0;
cuda_emulation::MemoryCounters memory_count;
std::set<int> used;                                                   // devices
std::vector<std::unique_ptr<cudaEventOfEmulation>> destroyed_events;  // that streams may still wait for
std::map<const void*, size_t> shared_limits;
cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

int number_from(const char* text) { return static_cast<int>(std::strtol(text, nullptr, 10)); }
int& device_count() {
  static int count = [] {
    const char* text = std::getenv("CUDA_EMULATION_DEVICES");
    return text == nullptr ? 1 : number_from(text);
  }();
  return count;
}
/// The numbers on this host of the devices that the program sees.
std::vector<int> visible() {
  std::vector<int> devices;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int device = 0; device < device_count(); ++device) devices.push_back(device);
    return devices;
  }
  for (std::string rest = text; !rest.empty();) {
    const int device = number_from(rest.c_str());
    if (device < 0 || device >= device_count()) break;  // nothing behind one that is not there is seen
    devices.push_back(device);
    const size_t comma = rest.find(',');
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return devices;
}
bool is_visible(int device) { return device >= 0 && device < static_cast<int>(visible().size()); }

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

/// Of each device, in this process.
size_t capacity() {
  static const size_t kBytes = [] {
    const char* text = std::getenv("CUDA_EMULATION_MEMORY");  // in MiB
    return text == nullptr ? size_t{8} << 30 : static_cast<size_t>(number_from(text)) << 20;
  }();
  return kBytes;
}
size_t free_of(int device) {
  size_t free = capacity();
  for (const auto& [address, memory] : memories) {
    if (memory.device == device) free -= std::min(free, memory.bytes);
  }
  return free;
}

/// Of what allocates or frees.
void note_allocation(const char* what) {
  used.insert(current_device);
  ++memory_count.allocations;
  if (sums_under_way == 0 || std::getenv("CUDA_EMULATION_NO_GROWTH") == nullptr) return;
  std::fprintf(stderr,
               "cuda emulation: %s while %d sums over workers are under way: it would wait for them on a real device, "
               "and this process for ever if the others wait for it\n",
               what, sums_under_way);
  std::abort();
}

bool is_page_locked(const void* address, size_t bytes) {
  const auto holds = [&](const void* begin, size_t size) {
    const auto* from = static_cast<const char*>(begin);
    const auto* at = static_cast<const char*>(address);
    return std::less_equal<>()(from, at) && std::less_equal<>()(at + bytes, from + size);
  };
  const auto own = memories.upper_bound(const_cast<void*>(address));
  if (own != memories.begin()) {
    const auto& [begin, memory] = *std::prev(own);
    if (holds(begin, memory.bytes)) return memory.device == kHost;
  }
  const auto given = registered.upper_bound(address);
  return given != registered.begin() && holds(std::prev(given)->first, std::prev(given)->second);
}

/// With CUDA_EMULATION_REPORT, the name of a file, a line of it for each process when it ends.
struct Report {
  ~Report() {
    const char* name = std::getenv("CUDA_EMULATION_REPORT");
    std::FILE* file = name == nullptr || memory_count.allocations == 0 ? nullptr : std::fopen(name, "a");
    if (file == nullptr) return;
    std::fprintf(file, "page-locked %lld pageable %lld\n", static_cast<long long>(memory_count.page_locked_bytes),
                 static_cast<long long>(memory_count.pageable_bytes));
    std::fclose(file);
  }
} report;

cudaStream_t actual(cudaStream_t stream) { return stream == nullptr ? &default_stream : stream; }

/// False: the next work waits for others.
bool run_next(cudaStreamOfEmulation& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.event != nullptr) {
    work.event->reached = std::max(work.event->reached, work.record);
  } else if (!work.run()) {
    stream.queue.push_front(std::move(work));
    return false;
  }
  return true;
}

void drain(cudaStreamOfEmulation& stream) {
  while (!stream.queue.empty()) run_next(stream);
}

void drain_all() {
  for (cudaStream_t stream : streams) drain(*stream);
}

/// Does what comes before that recording of the event.
void reach(cudaEvent_t event, int64_t record) {
  while (event->reached < record && event->stream != nullptr && !event->stream->queue.empty()) run_next(*event->stream);
}

void* make_memory(size_t bytes, int device) {
  constexpr size_t kAlignment = 256;  // as CUDA's
  void* address = nullptr;
  if (posix_memalign(&address, kAlignment, std::max<size_t>(bytes, 1)) != 0) throw std::bad_alloc();
  std::memset(address, 0xff, std::max<size_t>(bytes, 1));
  memories.emplace(address, Memory{.data = std::unique_ptr<void, Free>(address), .bytes = bytes, .device = device});
  return address;
}
}  // namespace

namespace cuda_emulation {

const MemoryCounters& memory_counters() { return memory_count; }
void set_devices(int number) { device_count() = number; }
int device_of(cudaStream_t stream) { return stream == nullptr ? current_device : stream->device; }
std::set<int> take_used_devices() { return std::exchange(used, {}); }
void add_sums_under_way(int number) { sums_under_way += number; }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  enqueue_polled(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

void enqueue_polled(cudaStream_t stream, std::function<bool()> work) {
  actual(stream)->queue.push_back({.run = std::move(work)});
}

cudaError_t allow_shared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMostShared) return answer(cudaErrorInvalidValue);
  shared_limits[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  constexpr unsigned int kMostRows = 65'535;
  const bool has_room = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffU && grid.y <= kMostRows &&
                        grid.z <= kMostRows && block.x > 0 && block.y > 0 && block.z > 0 && block.z <= 64 &&
                        block.x * block.y * block.z <= kMostThreads;
  if (!has_room) return answer(cudaErrorInvalidConfiguration);
  const auto limit = shared_limits.find(kernel);
  const size_t shared = limit == shared_limits.end() ? kShared : std::max(kShared, limit->second);
  if (config.dynamicSmemBytes > shared) return answer(cudaErrorInvalidValue);
  if (device_of(config.stream) != current_device) return answer(cudaErrorInvalidResourceHandle);
  const Launch shape{
      .grid = {grid.x, grid.y, grid.z}, .block = {block.x, block.y, block.z}, .shared_bytes = config.dynamicSmemBytes};
  enqueue(config.stream, [shape, thread = std::move(thread)] { run(shape, thread); });
  return cudaSuccess;
}

}  // namespace cuda_emulation

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorInvalidValue:
      break;
  }
  return "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int* number) {
  *number = static_cast<int>(visible().size());
  return *number > 0 ? cudaSuccess : answer(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (!is_visible(device)) return answer(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_visible(device)) return answer(cudaErrorInvalidDevice);
  *properties = {.name = "emulated device",
                 .uuid = {{static_cast<char>(visible()[static_cast<size_t>(device)])}},
                 .totalGlobalMem = capacity(),
                 .multiProcessorCount = 4,
                 .major = 9,
                 .minor = 0,
                 .sharedMemPerBlockOptin = cuda_emulation::kMostShared};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = capacity();
  *free_bytes = free_of(current_device);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  note_allocation("cudaMalloc");
  if (bytes > free_of(current_device)) return answer(cudaErrorMemoryAllocation);
  *memory = make_memory(bytes, current_device);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  note_allocation("cudaFree");
  drain_all();
  return memories.erase(memory) == 1 ? cudaSuccess : answer(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, cudaHostAllocDefault); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int /*flags*/) {
  note_allocation("cudaHostAlloc");
  *memory = make_memory(bytes, kHost);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int /*flags*/) {
  note_allocation("cudaHostRegister");
  const bool is_new = memory != nullptr && bytes > 0 && registered.try_emplace(memory, bytes).second;
  return is_new ? cudaSuccess : answer(cudaErrorInvalidValue);
}
cudaError_t cudaHostUnregister(void* memory) {
  return registered.erase(memory) == 1 ? cudaSuccess : answer(cudaErrorInvalidValue);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost) {
    const bool is_locked = is_page_locked(kind == cudaMemcpyHostToDevice ? from : to, bytes);
    (is_locked ? memory_count.page_locked_bytes : memory_count.pageable_bytes) += static_cast<int64_t>(bytes);
  }
  cuda_emulation::enqueue(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  cuda_emulation::enqueue(stream, [memory, value, bytes] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  used.insert(current_device);
  *stream = new cudaStreamOfEmulation{.queue = {}, .device = current_device};  // NOLINT: as the C interface wants it
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  drain(*stream);
  std::erase(streams, stream);
  delete stream;  // NOLINT
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  drain(*actual(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  cudaStreamOfEmulation& queue = *actual(stream);
  if (!queue.queue.empty()) run_next(queue);
  return queue.queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  const int64_t record = event->recorded;
  cuda_emulation::enqueue_polled(stream, [event, record] {
    while (event->reached < record && event->stream != nullptr && !event->stream->queue.empty()) {
      if (!run_next(*event->stream)) return false;
    }
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = new cudaEventOfEmulation{.device = current_device};  // NOLINT
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  destroyed_events.emplace_back(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != cuda_emulation::device_of(stream)) return answer(cudaErrorInvalidResourceHandle);
  event->stream = actual(stream);
  event->stream->queue.push_back({.run = {}, .event = event, .record = ++event->recorded});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  reach(event, event->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->reached < event->recorded && !event->stream->queue.empty()) run_next(*event->stream);
  return event->reached >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}
