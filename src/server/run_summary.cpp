// What a run says when it has ended.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "hat/core/text.hpp"
#include "hat/metrics/account.hpp"
#include "server/run_lines.hpp"
#include "server/run_log.hpp"

namespace hat {

using nlohmann::json;

// Where slots are shared memory, those that a worker has read are resident in it as well; the estimate has them once.
void RunLog::say_memory() const {
  const auto used = [](const WorkerSummary& w) { return w.peak_resident - w.shared_resident - w.resident_before; };
  const auto most = std::max_element(workers_.begin(), workers_.end(),
                                     [&](const auto& a, const auto& b) { return used(a) < used(b); });
  const auto on_device = std::ranges::max_element(workers_, {}, &WorkerSummary::device_taken);
  if (on_device != workers_.end() && on_device->device_taken >= 0) {
    say(fmt::format("memory of worker {}'s device: {} taken; {} was planned", on_device->worker,
                    human_bytes(on_device->device_taken), human_bytes(plan_.device_bytes)));
  }
  if (most == workers_.end() || most->peak_resident == 0) return;  // /proc does not tell
  say(
      fmt::format("memory of worker {}'s process: at most {}, of it {} before training, {} shared with servers and {} "
                  "for training; {} was estimated",
                  most->worker, human_bytes(most->peak_resident), human_bytes(most->resident_before),
                  human_bytes(most->shared_resident), human_bytes(used(*most)), human_bytes(plan_.worker_bytes)));
}

void RunLog::say_workers() const {
  say("time of each worker, % of its wall clock:");
  std::string head = fmt::format("  {:<8}", "worker");
  for (const char* name : kActivityNames) head += fmt::format("{:>14}", name);
  say(head + fmt::format("{:>15}{:>12}{:>10}{:>12}{:>12}", "communication", "tokens", "units", "pulled", "pushed"));
  const auto row = [](const std::string& who, const AccountReading& time) {
    std::string text = fmt::format("  {:<8}", who);
    for (const double s : time.seconds) text += fmt::format("{:>14.1f}", 100.0 * s / wall_seconds(time));
    return text + fmt::format("{:>15.1f}", 100.0 * communication_share(time));
  };
  WorkerSummary all;
  for (const WorkerSummary& worker : workers_) {
    say(row(std::to_string(worker.worker), worker.account) +
        fmt::format("{:>12}{:>10}{:>12}{:>12}", with_commas(worker.tokens), worker.units,
                    human_bytes(worker.pulled_bytes), human_bytes(worker.pushed_bytes)));
    add(all.account, worker.account);
    all.tokens += worker.tokens;
    all.units += worker.units;
    all.pulled_bytes += worker.pulled_bytes;
    all.pushed_bytes += worker.pushed_bytes;
  }
  if (workers_.size() > 1) {
    say(row("all", all.account) + fmt::format("{:>12}{:>10}{:>12}{:>12}", with_commas(all.tokens), all.units,
                                              human_bytes(all.pulled_bytes), human_bytes(all.pushed_bytes)));
  }
  say(fmt::format("all workers: utilization {:.1f} %, communication share {:.1f} % of their time",
                  100 * utilization(all.account), 100 * communication_share(all.account)));
}

// Modelled where the deck says what devices take; otherwise one worker of each node has read the node's counters.
void RunLog::say_energy() const {
  const EmulatedDeviceConfig& device = plan_.deck.emulation.device;
  if (device.busy_watts > 0 || device.idle_watts > 0) {
    double modelled = 0;
    for (const WorkerSummary& worker : workers_) {
      const double busy_s = utilization(worker.account) * wall_seconds(worker.account);
      modelled += device.busy_watts * busy_s + device.idle_watts * (wall_seconds(worker.account) - busy_s);
    }
    say(fmt::format("energy: {:.0f} J modelled, {} W while a worker computes and {} W while it does not", modelled,
                    device.busy_watts, device.idle_watts));
    return;
  }
  say_devices();
  double joules = 0;
  int64_t nodes = 0;
  for (const WorkerSummary& worker : workers_) {
    if (worker.node_joules < 0) continue;
    joules += worker.node_joules;
    ++nodes;
  }
  if (nodes == 0) {
    say("energy: counters are not readable here (/sys/class/powercap)");
    return;
  }
  say(fmt::format(
      "energy: {:.0f} J by the counters of {} node{} with workers (processors and memory, other programs too)", joules,
      nodes, nodes == 1 ? "" : "s"));
}

void RunLog::say_devices() const {
  double joules = 0;
  double utilization = 0;
  int64_t devices = 0;
  for (const WorkerSummary& worker : workers_) {
    if (worker.device_joules < 0 || worker.device_utilization < 0) continue;
    joules += worker.device_joules;
    utilization += worker.device_utilization;
    ++devices;
  }
  if (devices == 0) return;
  say(fmt::format("{}: {:.0f} J by their own counters, a kernel ran {:.1f} % of the time on average",
                  counted(devices, "GPU"), joules, 100 * utilization / static_cast<double>(devices)));
}

void RunLog::say_emulation() const {
  if (!plan_.deck.emulation.device.on() || workers_.empty()) return;
  const auto worst = std::max_element(workers_.begin(), workers_.end(),
                                      [](const auto& a, const auto& b) { return a.worst_lag_s < b.worst_lag_s; });
  double mean_lag_s = 0;
  double busy_s = 0;
  for (const WorkerSummary& worker : workers_) {
    mean_lag_s += worker.mean_lag_s / static_cast<double>(workers_.size());
    busy_s += worker.emulated_s / static_cast<double>(workers_.size());
  }
  say(fmt::format(
      "emulated devices: busy for {:.1f} s each on average; parts of units ended {:.1f} ms late on average, "
      "{:.1f} ms at most (worker {})",
      busy_s, 1e3 * mean_lag_s, 1e3 * worst->worst_lag_s, worst->worker));
}

void RunLog::say_hidden() const {
  WorkerSummary sum;
  double error = 0;
  int64_t predicted = 0;
  for (const WorkerSummary& worker : workers_) {
    sum.pulls += worker.pulls;
    sum.pulls_skipped += worker.pulls_skipped;
    sum.skipped_bytes += worker.skipped_bytes;
    sum.prefetches += worker.prefetches;
    sum.wrong_prefetches += worker.wrong_prefetches;
    if (worker.unit_time_error < 0) continue;
    error += worker.unit_time_error;
    ++predicted;
  }
  const std::string prefetches =
      sum.prefetches == 0 ? "none"
                          : fmt::format("{}, {:.1f} % wrong", with_commas(sum.prefetches),
                                        mean(100.0 * static_cast<double>(sum.wrong_prefetches), sum.prefetches));
  say(fmt::format("blocks pulled: {}; spared because unchanged or on the node already: {} ({}); prefetches: {}",
                  with_commas(sum.pulls), with_commas(sum.pulls_skipped), human_bytes(sum.skipped_bytes), prefetches));
  if (predicted > 0) {
    say(fmt::format("seconds of the newest units were predicted within {:.1f} % (mean)",
                    100.0 * mean(error, predicted)));
  }
}

void RunLog::say_gangs(const GangSummary& gangs) {
  if (!plan_.forms_gangs()) return;
  if (gangs_ == 0) {
    say("sequences computed by several workers: none");
    return;
  }
  unsplit_steps_ = gangs.unsplit_steps;
  metrics_.append(json{{"kind", "gangs"},
                       {"gangs", gangs_},
                       {"members", gang_members_},
                       {"required", required_gangs_},
                       {"time_error", std::isnan(gangs.time_error) ? json(nullptr) : json(gangs.time_error)},
                       {"unsplit_steps", gangs.unsplit_steps}}
                      .dump());
  const std::string required =
      required_gangs_ > 0 ? fmt::format(", {} of them because no worker has the memory", with_commas(required_gangs_))
                          : "";
  std::string predicted;
  if (!std::isnan(gangs.time_error)) {
    predicted = fmt::format("; their seconds were predicted within {:.1f} % (mean)", 100 * gangs.time_error);
  }
  say(fmt::format("sequences computed by several workers: {} in {} of {}, by {:.1f} on average{}{}",
                  with_commas(gangs_), gang_steps_, counted(std::ssize(step_points_), "step"),
                  mean(static_cast<double>(gang_members_), gangs_), required, predicted));
  say_trials(gangs);
}

void RunLog::say_trials(const GangSummary& gangs) const {
  const bool some_required = plan_.least_gang > 0;
  if (!split_decisions_.empty()) {
    say(fmt::format("{} of splitting, the last: {}", counted(std::ssize(split_decisions_), "trial"),
                    text_of(split_decisions_.back(), some_required)));
  }
  if (gangs.unfinished_trial) {
    say(fmt::format("a trial of splitting did not come to its end: {}",
                    steps_text(*gangs.unfinished_trial, some_required)));
  }
}

void RunLog::say_summary(const GangSummary& gangs) {
  std::sort(workers_.begin(), workers_.end(),
            [](const WorkerSummary& a, const WorkerSummary& b) { return a.worker < b.worker; });
  say("\n--- summary ---");
  if (!evaluations_.empty()) {
    const auto bits = [this](const EvaluationResult& e) { return e.nats / (std::numbers::ln2 * validation_bytes_); };
    say(fmt::format("validation loss: {:.4f} bits per byte before, {:.4f} after {}", bits(evaluations_.front()),
                    bits(evaluations_.back()), counted(evaluations_.back().step, "step")));
  }
  say(fmt::format("trained {} tokens in {:.1f} s: {:.0f} tokens/s (validation included)", with_commas(trained_tokens_),
                  seconds(), static_cast<double>(trained_tokens_) / seconds()));
  say_workers();
  say_hidden();
  say_gangs(gangs);
  say_memory();
  say_energy();
  say_emulation();
  std::string late;
  for (size_t s = 0; s < staleness_counts_.size(); ++s) {
    if (staleness_counts_[s] > 0) late += fmt::format("  {} late: {}", s, with_commas(staleness_counts_[s]));
  }
  say(fmt::format("pushes by staleness (versions):{}", late));
  for (const std::string& line : blocks_.summary()) say(line);
  if (!workers_.empty() && !workers_.front().sample.empty()) {
    say(fmt::format("sample of generated text:\n----------\n{}\n----------", workers_.front().sample));
  }
}

}  // namespace hat
