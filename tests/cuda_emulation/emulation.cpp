// The runtime's functions: devices, memory, streams and events of one process.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulation.hpp"
#include "cuda_runtime.h"

namespace {
using cuda_emulation::Launch;

constexpr unsigned int kMostThreads = 1024;
constexpr size_t kShared = 48 * 1024;  // without cudaFuncSetAttribute
constexpr size_t kMostShared = 227 * 1024;

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
                 .sharedMemPerBlockOptin = kMostShared};
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
