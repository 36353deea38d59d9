#include "worker/emulated_device.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <utility>

#include "hat/core/clock.hpp"
#include "hat/core/random.hpp"
#include "hat/ledger/sequence_cut.hpp"

namespace hat {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Each use of random numbers has a seed of its own; the streams are the workers.
enum class Draw : uint64_t { jitter = 1, slow_phase, stall };
uint64_t seed_of(Draw draw, uint64_t seed) { return mix_bits(seed ^ 0x0de71ceULL) + static_cast<uint64_t>(draw); }

}  // namespace

Disturbances::Disturbances(const EmulatedDeviceConfig& config, uint64_t seed, int worker)
    : config_(config), seed_(seed), worker_(static_cast<uint64_t>(worker)) {
  if (!config.is_disturbed(worker)) {
    config_.slow_every_s = 0;
    config_.stall_every_s = 0;
  }
  first_slow_s_ = config_.slow_every_s * random_uniform(seed_of(Draw::slow_phase, seed_), worker_, 0);
  draw_stall(0);
}

void Disturbances::draw_stall(double after_s) {
  if (config_.stall_every_s == 0) {
    stall_begin_s_ = kNever;
    return;
  }
  const double uniform = 1.0 - random_uniform(seed_of(Draw::stall, seed_), worker_, stalls_++);
  stall_begin_s_ = after_s - config_.stall_every_s * std::log(uniform);
}

Disturbances::Phase Disturbances::slow_phase_at(double time_s) const {
  if (config_.slow_every_s == 0) return {.factor = 1, .end_s = kNever};
  if (time_s < first_slow_s_) return {.factor = 1, .end_s = first_slow_s_};
  const double begin_s =
      first_slow_s_ + config_.slow_every_s * std::floor((time_s - first_slow_s_) / config_.slow_every_s);
  const double slow_end_s = begin_s + config_.slow_for_s;
  if (time_s < slow_end_s) return {.factor = config_.slow_factor, .end_s = slow_end_s};
  return {.factor = 1, .end_s = begin_s + config_.slow_every_s};
}

Disturbances::Phase Disturbances::phase_at(double time_s) {
  while (time_s >= stall_begin_s_ + config_.stall_for_s) draw_stall(stall_begin_s_ + config_.stall_for_s);
  if (time_s >= stall_begin_s_) return {.factor = kNever, .end_s = stall_begin_s_ + config_.stall_for_s};
  const Phase slow = slow_phase_at(time_s);
  return {.factor = slow.factor, .end_s = std::min(slow.end_s, stall_begin_s_)};
}

double Disturbances::finish(double start_s, double work_s) {
  double time_s = start_s;
  while (true) {
    const Phase phase = phase_at(time_s);
    // (Sums of times may fall on an end only nearly; a phase of no length must not hold time up.)
    const double left_s = std::max(phase.end_s - time_s, 1e-9);
    if (work_s * phase.factor <= left_s) return time_s + work_s * phase.factor;
    if (std::isinf(phase.factor)) stalled_s_ += left_s;
    work_s -= left_s / phase.factor;
    time_s += left_s;
  }
}

EmulatedDevice::EmulatedDevice(const EmulatedDeviceConfig& config, ChargedCost cost, uint64_t seed, int worker,
                               Waiting& waiting)
    : cost_(std::move(cost)),
      speed_(config.speed_of(worker)),
      jitter_(config.jitter),
      seed_(seed),
      worker_(static_cast<uint64_t>(worker)),
      waiting_(waiting),
      disturbances_(config, seed, worker),
      start_s_(now_s()),
      clock_s_(start_s_) {}

void EmulatedDevice::begin_unit(int64_t unit, std::span<const int32_t> offsets) {
  UnitSize size;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) size += size_of_range(0, offsets[i + 1] - offsets[i]);
  begin_unit(unit, size);
}

void EmulatedDevice::begin_unit(int64_t unit, const GangRange& range) { begin_unit(unit, size_of(range)); }

void EmulatedDevice::begin_unit(int64_t unit, const UnitSize& size) {
  next_block_ = 0;
  ++units_;
  size_ = size;
  done_flop_ = 0;
  slowness_ = random_log_normal(jitter_, seed_of(Draw::jitter, seed_), worker_, static_cast<uint64_t>(unit));
}

void EmulatedDevice::before_forward(int64_t block) {
  if (next_block_ < 0) return;
  double flop = 0;
  for (; next_block_ < block; ++next_block_) {
    flop += cost_.blocks()[static_cast<size_t>(next_block_)].of(size_.tokens, size_.area) / 3;
  }
  finish_block(flop);
}

void EmulatedDevice::after_backward(int64_t block) {
  const bool head = block + 1 == std::ssize(cost_.blocks());
  finish_block(cost_.blocks()[static_cast<size_t>(block)].of(size_.tokens, size_.area) * (head ? 3 : 2) / 3);
  if (block == 0) next_block_ = -1;
}

void EmulatedDevice::do_part(int64_t block, double tokens, double area, bool backward) {
  if (!backward) before_forward(block);
  const double flop = cost_.blocks()[static_cast<size_t>(block)].of(tokens, area) * (backward ? 2 : 1) / 3;
  work(flop);
  done_flop_ += flop;
}

/// The rest of a block, or of several, of so many FLOP together.
void EmulatedDevice::finish_block(double flop) {
  if (flop == 0) return;
  work(std::max(0.0, flop - done_flop_));
  done_flop_ = 0;
}

void EmulatedDevice::resume() { clock_s_ = now_s(); }

void EmulatedDevice::end_soon() {
  constexpr double kPatience_s = 5;  // batch systems kill half a minute after they have asked
  no_sleep_from_s_ = std::min(no_sleep_from_s_, now_s() + kPatience_s);
}

void EmulatedDevice::work(double flop) {
  if (flop == 0) return;
  const double begin_s = std::max(clock_s_, waiting_.last_wait_end_s());
  const double undisturbed_s = flop / speed_ * slowness_;
  const double stalled_before_s = disturbances_.stalled_s();
  clock_s_ = start_s_ + disturbances_.finish(begin_s - start_s_, undisturbed_s);
  seconds_ += clock_s_ - begin_s;
  // Where in the part it stood still makes no difference to anybody: it does so at the end.
  const double stalled_s = disturbances_.stalled_s() - stalled_before_s;
  sleep_until(clock_s_ - stalled_s);
  if (stalled_s > 0) {
    stands_still_ = true;
    const ActivityScope scope = waiting_.no_work();
    sleep_until(clock_s_);
    stands_still_ = false;
  }
  if (units_ == 1 || now_s() >= no_sleep_from_s_) return;  // the first one, in which libraries make their kernels
  const double lag_s = now_s() - clock_s_;
  lag_sum_s_ += lag_s;
  worst_lag_s_ = std::max(worst_lag_s_, lag_s);
  ++parts_;
}

// Communication goes on meanwhile. Many emulated workers share a core: they look after it once in a millisecond at
// most.
void EmulatedDevice::sleep_until(double time_s) const {
  constexpr double kLongestNap_s = 1e-3;
  double nap_s = 50e-6;
  const auto left = [&] { return std::min(time_s, no_sleep_from_s_) - now_s(); };
  for (double left_s = left(); left_s > 0; left_s = left()) {
    waiting_.progress_beside_device();
    const timespec nap{.tv_sec = 0, .tv_nsec = static_cast<long>(1e9 * std::min(left_s, nap_s))};
    nanosleep(&nap, nullptr);
    nap_s = std::min(2 * nap_s, kLongestNap_s);
  }
}

EmulatedDevice::Lag EmulatedDevice::lag() const {
  return {.worst_s = worst_lag_s_, .mean_s = parts_ > 0 ? lag_sum_s_ / static_cast<double>(parts_) : 0.0};
}

}  // namespace hat
