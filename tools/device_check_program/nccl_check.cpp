#include "nccl_check.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "gpu.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/device/nccl_communicator.hpp"

namespace hat::check_device {

namespace {

constexpr double kTimeout_s = 60;

/// Sums ones with the other processes; whether the sums are right.
bool sum_is_right(const std::string& id, int size, int rank) {
  Gpu gpu(rank, /*seed=*/1);
  const Device device{.kind = DeviceKind::cuda, .index = rank, .threads = 1};
  NcclCommunicator communicator(id, size, rank, device, kTimeout_s, nullptr);
  bool is_right = true;
  for (const int64_t count : {1 << 10, 1 << 20, 1 << 24}) {
    Array<float> data(gpu, std::vector<float>(static_cast<size_t>(count), static_cast<float>(rank + 1)));
    NcclAllReduce sum = communicator.start({data.data(), static_cast<size_t>(count)}, gpu.stream().record(),
                                           NcclCommunicator::InBucket::last);
    for (const double begin_s = now_s(); !sum.step(); usleep(100)) {
      if (now_s() - begin_s > kTimeout_s) throw Error(fmt::format("a sum did not come about within {} s", kTimeout_s));
    }
    const double expected = 0.5 * size * (size + 1);
    for (const double value : data.read()) is_right = is_right && value == expected;
  }
  return is_right;
}

void write_all(int file, const std::string& text) {
  if (write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) throw Error("cannot write to a pipe");
}

std::string read_id(int file, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = read(file, text.data() + done, bytes - done);
    if (got <= 0) throw Error("the process that names the NCCL communicator has ended");
    done += static_cast<size_t>(got);
  }
  return text;
}

/// Processes of the other GPUs. None outlives this object, nor this process, however that ends.
class Children {
 public:
  Children() = default;
  ~Children() {
    for (const pid_t child : alive_) kill(child, SIGKILL);
    for (const pid_t child : alive_) waitpid(child, nullptr, 0);
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Runs `work` in a new process, whose exit status it returns.
  template <class Work>
  void start(Work&& work) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) throw Error("cannot start a process");
    if (child > 0) {
      alive_.push_back(child);
      return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) std::_Exit(work());
    std::_Exit(1);  // it has ended before it could be heard of
  }

  /// Whether all end with status 0.
  bool wait() {
    bool all = true;
    while (!alive_.empty()) {
      int status = 0;
      waitpid(alive_.back(), &status, 0);
      alive_.pop_back();
      all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return all;
  }

 private:
  std::vector<pid_t> alive_;
};

}  // namespace

// A process for each GPU, begun before any of them uses CUDA; the first one's id goes to the others through pipes.
bool nccl_sums_are_right(int gpus) {
  constexpr size_t kIdBytes = 128;
  choose_nccl_algorithm(NcclAlgorithm::ring);
  Children children;
  std::vector<int> pipes;
  for (int rank = 1; rank < gpus; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("cannot make a pipe");
    pipes.push_back(ends[1]);
    children.start([&] {
      for (const int file : pipes) close(file);  // or nobody would see that the first process has ended
      try {
        return sum_is_right(read_id(ends[0], kIdBytes), gpus, rank) ? 0 : 1;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "device_check: GPU %d: %s\n", rank, error.what());
      }
      return 1;
    });
    close(ends[0]);
  }
  const std::string id = NcclCommunicator::make_id();
  for (const int file : pipes) write_all(file, id);
  const bool is_right = sum_is_right(id, gpus, 0);
  return children.wait() && is_right;
}

}  // namespace hat::check_device
