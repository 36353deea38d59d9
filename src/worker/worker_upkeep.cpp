#include <limits>

#include "hat/core/proc.hpp"
#include "hat/core/stop_signal.hpp"
#include "hat/device/cuda.hpp"
#include "worker/worker_impl.hpp"

namespace hat {

void Worker::Impl::progress() {
  tell_of_signal();
  // Beside an emulated device.
  say_alive(/*computes=*/account.current() == Activity::compute || (emulated && emulated->stands_still()));
  if (beside) {
    const ActivityScope scope(account, Activity::other);
    beside();
  }
  leases.progress();
  if (emulated && leases.run_stops()) emulated->end_soon();
  cache.progress();
  copy_ahead();
  sender.progress();
  gang.advance();
  account.set_ring_gathering(sender.ring_gathers());
  read_energy();
}

// What has come for the next unit goes on to the device while that computes.
void Worker::Impl::copy_ahead() {
  if (on_device.on_host()) return;
  for (int64_t block = 0; block < std::ssize(parameters); ++block) {
    if (const auto come = cache.arrived(block)) {
      on_device.bring_ahead(block, come->values, come->version, come->predicted);
    }
  }
}

void Worker::Impl::tell_of_signal() {
  if (told_of_signal || stop_signal() == 0) return;
  told_of_signal = true;
  const MpiScope mpi(account);
  mailbox.post(StopRequest{.rank = mailbox.communicator().rank(), .signal = stop_signal()},
               plan.roles.rank_of_server[0], MailTag::to_server);
}

// Server 0 hears nothing else of a worker that computes a long unit, and must not take it for dead.
void Worker::Impl::say_alive(bool computes) {
  const double now = now_s();
  if (now - alive_s < alive_every_s(plan.deck)) return;
  alive_s = now;
  const MpiScope mpi(account);
  mailbox.post(Alive{.computes = computes, .waits_for = waiting.waits_for(), .waits_s = waiting.waits_s()},
               plan.roles.rank_of_server[0], MailTag::to_server);
}

// In training and validation, and while something is waited for: counters run over after some minutes.
void Worker::Impl::read_energy() {
  constexpr double kEvery_s = 30;
  constexpr double kGpuEvery_s = 1;  // what its utilization is of
  if (gpu && now_s() - gpu_read_s >= kGpuEvery_s) {
    gpu->update();
    gpu_read_s = now_s();
  }
  if (energy == nullptr || now_s() - energy_read_s < kEvery_s) return;
  energy->update();
  energy_read_s = now_s();
}

AccountReading Worker::Impl::account_reading() {
  AccountReading reading = account.reading();
  reading.block_wait_seconds = block_waits;
  return reading;
}

void Worker::Impl::say_goodbye(int64_t end_step) {
  sender.finish();
  waiting.until(Activity::wait_gang, "keys and values to leave", [this] { return gang.is_idle(); });
  cache.finish();
  WorkerSummary summary{.worker = worker, .account = account_reading()};
  summary.wall_seconds = now_s() - begin_s;
  account.set_listener({});
  if (energy != nullptr) {
    energy->update();
    summary.node_joules = energy->joules().value_or(-1.0);
  }
  if (gpu) {
    gpu->update();
    summary.device_joules = gpu->joules().value_or(-1.0);
    summary.device_utilization = gpu->utilization().value_or(-1.0);
  }
  summary.tokens = trained_tokens;
  summary.units = trained_units;
  summary.pulls = cache.counters().accepted;
  summary.pulls_rejected = cache.counters().rejected;
  summary.pulled_bytes = cache.counters().bytes;
  summary.pulls_skipped = cache.counters().skipped;
  summary.skipped_bytes = cache.counters().skipped_bytes;
  summary.prefetches = cache.counters().guesses;
  summary.wrong_prefetches = cache.counters().wrong_guesses;
  summary.pushed_bytes = sender.pushed_bytes();
  summary.exchanged_bytes = gang.sent_bytes();
  summary.resident_before = resident_before;
  summary.peak_resident = peak_resident_bytes();
  summary.shared_resident = shared_resident_bytes();
  if (device_free_before >= 0) {
    summary.device_taken = device_free_before - cuda::free_bytes(compute.device().index);
  }
  if (emulated) {
    summary.emulated_s = emulated->busy_seconds();
    summary.mean_lag_s = emulated->lag().mean_s;
    summary.worst_lag_s = emulated->lag().worst_s;
  }
  if (worker == 0 && sampler && !leases.run_stops()) {
    current = {.kind = LeaseKind::evaluate, .step = end_step};
    prefetch(current);
    for (int64_t block = 0; block < static_cast<int64_t>(parameters.size()); ++block) before_forward(block);
    summary.sample = sampler(model, parameters, [this] {
      say_alive(/*computes=*/true);
      progress();
      return !leases.run_stops();
    });
  }
  alive_s = std::numeric_limits<double>::infinity();  // its last word
  mailbox.post(summary, plan.roles.rank_of_server[0], MailTag::to_server);
  waiting.until(Activity::other, "the summary to leave", [this] { return mailbox.flush(); });
}

}  // namespace hat
