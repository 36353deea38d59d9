#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>

/// CUDA's execution of kernels on the CPU, for tests: sources of kernels compile as C++ against the headers beside this
/// one and run block by block, each thread a fiber of its own. A thread runs until it waits (a barrier, a warp
/// function) or ends; who goes on next is up to `Order`, so that a missing barrier shows as a wrong result in one of
/// them.
///
/// What cannot happen on a GPU either is an EmulationError: waiting for threads that never come, warp functions called
/// by lanes that their mask does not name, launches beyond the limits of a device. Memory of the device and shared
/// memory are exact heap blocks filled with NaN, so AddressSanitizer sees what lies outside.
///
/// Work given to a stream is done when somebody waits for it (cudaStreamSynchronize, an event, ...), not before: who
/// forgets to wait reads old values.
namespace cuda_emulation {

/// In which order the blocks of a grid, and the threads of a block between two barriers, run.
enum class Order { ascending, descending, shuffled };
void set_order(Order order);

/// Of the launches that run from now on, in this process.
struct Counters {
  int64_t launches = 0;
  int64_t blocks = 0;
  int64_t threads = 0;
  int64_t barriers = 0;
};
const Counters& counters();

/// Of the memory of devices, in this process.
struct MemoryCounters {
  int64_t allocations = 0;        ///< calls that allocate or free, or lock pages: all may wait for the whole device
  int64_t page_locked_bytes = 0;  ///< copied from and to memory of the host that is, or is not, page-locked
  int64_t pageable_bytes = 0;
};
const MemoryCounters& memory_counters();

/// Devices of this host; until this is called as many as the environment's CUDA_EMULATION_DEVICES, 1 without. A program
/// sees those of CUDA_VISIBLE_DEVICES (numbers only), or all. Each has CUDA_EMULATION_MEMORY MiB, 8192 without, for
/// each process.
void set_devices(int count);
/// Devices on which this process has made or freed something since this was asked last.
std::set<int> take_used_devices();
/// Sums over workers that have begun, or (negative) ended. With CUDA_EMULATION_NO_GROWTH in the environment a process
/// that allocates meanwhile is aborted.
void add_sums_under_way(int number);

struct Index {
  unsigned int x = 0;
  unsigned int y = 0;
  unsigned int z = 0;
};

// For the headers: what a kernel that runs sees and does.
const Index& thread_index();
const Index& block_index();
const Index& block_size();
const Index& grid_size();
int lane();
void* dynamic_shared();
void block_barrier();
/// `block_barrier` that gives every thread the number of those whose `predicate` holds.
int block_barrier_count(bool predicate);

inline constexpr int kMeetingFloats = 128;

/// All lanes of `mask` meet; each gives `size` bytes (at most 64) and gets those of lane `l` by `from(l)`. `what` names
/// the function: all lanes must call the same.
class WarpMeeting {
 public:
  WarpMeeting(const char* what, unsigned int mask, const void* mine, size_t size);
  /// Of a lane in the mask; other lanes give undefined values, as on a GPU: NaN bytes here.
  const void* from(int lane) const;
  /// Memory for what is computed for all lanes at once, by the first that asks.
  float* together(bool& is_first) const;

 private:
  int slot_ = 0;
};

/// Copies from global to shared memory that this thread has begun, in groups. They are done as late as can be, when it
/// waits for them, or, in descending order, as early as can be: what is not waited for, and what is overwritten while
/// others still read it, both show.
void begin_copy(void* shared, const void* global, size_t bytes, bool fill_with_zeros);
void commit_copies();
void wait_copies(int groups_that_may_remain);

struct Launch {
  Index grid;
  Index block;
  size_t shared_bytes = 0;
};
void run(const Launch& launch, const std::function<void()>& thread);

}  // namespace cuda_emulation
