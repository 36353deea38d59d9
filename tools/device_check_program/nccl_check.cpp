#include "nccl_check.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "gpu.hpp"
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
    while (!sum.step()) usleep(100);
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

}  // namespace

// A process for each GPU, begun before any of them uses CUDA; the first one's id goes to the others through pipes.
bool nccl_sums_are_right(int gpus) {
  constexpr size_t kIdBytes = 128;
  choose_nccl_algorithm(NcclAlgorithm::ring);
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int rank = 1; rank < gpus; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("cannot make a pipe");
    const pid_t child = fork();
    if (child < 0) throw Error("cannot start a process");
    if (child == 0) {
      int code = 1;
      try {
        code = sum_is_right(read_id(ends[0], kIdBytes), gpus, rank) ? 0 : 1;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "device_check: GPU %d: %s\n", rank, error.what());
      }
      std::_Exit(code);
    }
    children.push_back(child);
    pipes.push_back(ends[1]);
  }
  const std::string id = NcclCommunicator::make_id();
  for (const int file : pipes) write_all(file, id);
  bool is_right = sum_is_right(id, gpus, 0);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    is_right = is_right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return is_right;
}

}  // namespace hat::check_device
