#include "hat/core/fault.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace hat {

namespace fault_detail {

std::atomic<FaultPoint> armed{FaultPoint::none};

namespace {
FaultConfig config;
std::atomic<int64_t> passed{0};
std::atomic<bool> said{false};
}  // namespace

FaultEffect reach() {
  if (passed++ < config.after) return FaultEffect::none;
  if (!said.exchange(true)) std::fprintf(stderr, "fault: fault.action happens on rank %ld\n", config.rank);
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
    case FaultAction::drop:
      armed = FaultPoint::none;
      return FaultEffect::drop;
    case FaultAction::duplicate:
      return FaultEffect::duplicate;
    case FaultAction::fail:
      armed = FaultPoint::none;
      return FaultEffect::fail;
    case FaultAction::shorten:
      armed = FaultPoint::none;
      return FaultEffect::shorten;
  }
  return FaultEffect::none;
}

}  // namespace fault_detail

bool is_of_messages(FaultPoint point) { return point == FaultPoint::push || point >= FaultPoint::lease_request; }

bool is_of_writes(FaultPoint point) {
  return point == FaultPoint::log || point == FaultPoint::checkpoint || point == FaultPoint::complete ||
         point == FaultPoint::metrics;
}

void set_fault(const FaultConfig& config, int rank) {
  if (config.rank != rank) return;
  fault_detail::config = config;
  fault_detail::passed = 0;
  fault_detail::said = false;
  fault_detail::armed = config.at;
}

}  // namespace hat
