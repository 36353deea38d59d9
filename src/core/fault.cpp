#include "hat/core/fault.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace hat {

namespace fault_detail {

std::atomic<FaultPoint> armed{FaultPoint::none};

namespace {
FaultConfig config;
std::atomic<int64_t> passed{0};
}  // namespace

void reach() {
  if (passed++ < config.after) return;
  switch (config.action) {
    case FaultAction::kill_job:
      if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) ::kill(::getppid(), SIGKILL);  // not somebody's shell
      [[fallthrough]];
    case FaultAction::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case FaultAction::stop:
      armed = FaultPoint::none;  // once
      ::kill(::getpid(), SIGSTOP);
      break;
    case FaultAction::delay: {
      const auto seconds = static_cast<time_t>(config.delay_s);
      const timespec pause{.tv_sec = seconds,
                           .tv_nsec = static_cast<long>((config.delay_s - static_cast<double>(seconds)) * 1e9)};
      ::nanosleep(&pause, nullptr);
      break;
    }
  }
}

}  // namespace fault_detail

void set_fault(const FaultConfig& config, int rank) {
  if (config.rank != rank) return;
  fault_detail::config = config;
  fault_detail::armed = config.at;
}

}  // namespace hat
