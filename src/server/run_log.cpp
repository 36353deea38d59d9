#include "server/run_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "hat/core/build_info.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/core/text.hpp"
#include "hat/io/durable.hpp"
#include "hat/metrics/account.hpp"

namespace hat {

namespace {

using nlohmann::json;

// Lines of a run are read while it runs (a terminal, tail -f on a job's output), so each leaves at once.
void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

double mean(double sum, int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0.0; }

}  // namespace

RunLog::RunLog(const RunPlan& plan, const Dataset& dataset, const std::vector<std::vector<Sequence>>& validation)
    : plan_(plan),
      run_(plan.deck.output),
      validation_bytes_(static_cast<double>(plan.deck.eval.tokens == 0
                                                ? dataset.text_bytes(Split::validation)
                                                : text_bytes(dataset, Split::validation, validation))),
      start_s_(now_s()),
      last_step_s_(start_s_),
      speed_(start_s_),
      end_step_(plan.end_step),
      blocks_(plan),
      metrics_(run_ / "metrics.jsonl"),
      run_metrics_(plan) {
  std::vector<std::string> block_names;
  for (const BlockSpec& block : plan_.layout.blocks) block_names.push_back(block.name);
  metrics_.append(json{{"kind", "start"},
                       {"blocks", block_names},
                       {"first_step", plan_.first_step},
                       {"end_step", plan_.end_step},
                       {"servers", plan_.roles.servers()},
                       {"workers", plan_.roles.workers()},
                       {"worker_bytes", plan_.worker_bytes},
                       {"device_bytes", plan_.device_bytes},
                       {"precision", plan_.compute.arithmetic == Element::fp32 ? "fp32" : "bf16"},
                       {"revision", build_info().revision}}
                      .dump());
  write_status({{"status", "running"}});
}

double RunLog::seconds() const { return now_s() - start_s_; }

void RunLog::write_status(json status) {
  status["end_step"] = plan_.end_step;
  // Of a run that goes on they would be those of its last word.
  if (status["status"] != "running") status["seconds"] = seconds();
  rewrite_file_durably(run_ / "status.json", status.dump(2) + "\n");
}

void RunLog::unit(const UnitReport& report) {
  speed_.reported(report.tokens);
  run_metrics_.unit(report);
}

void RunLog::step(const StepResult& result, double learning_rate, double norm, const StepBlocks& blocks) {
  const int64_t done = result.step + 1;
  step_points_.push_back({.step = done, .nats = result.nats, .tokens = result.tokens, .seconds = seconds()});
  trained_tokens_ += result.tokens;
  interval_loss_.tokens += result.tokens;
  interval_loss_.nats += result.nats;
  if (staleness_counts_.size() < result.staleness_counts.size()) {
    staleness_counts_.resize(result.staleness_counts.size(), 0);
  }
  for (size_t s = 0; s < result.staleness_counts.size(); ++s) staleness_counts_[s] += result.staleness_counts[s];
  gangs_ += result.gangs;
  gang_members_ += result.gang_members;
  required_gangs_ += result.required_gangs;
  if (result.gangs > 0) ++gang_steps_;
  json line{{"kind", "step"},
            {"step", done},
            {"epoch", result.epoch},
            {"loss", mean(result.nats, result.tokens)},
            {"tokens", result.tokens},
            {"learning_rate", learning_rate},
            {"norm", std::isnan(norm) ? json(nullptr) : json(norm)},
            {"staleness", result.staleness_counts},
            {"gangs", result.gangs},
            {"gang_members", result.gang_members},
            {"required_gangs", result.required_gangs},
            {"seconds", seconds()}};
  blocks_.step(blocks, line);
  metrics_.append(line.dump());
  run_metrics_.step(result, learning_rate, norm, seconds(), blocks);
  last_step_s_ = now_s();
  if (done % plan_.deck.log_every != 0 && done != end_step_) return;
  std::string line_text =
      fmt::format("step {:>6}/{}  epoch {}  loss {:.4f} nats/token  rate {:.2e}", done, plan_.end_step, result.epoch,
                  mean(interval_loss_.nats, interval_loss_.tokens), learning_rate);
  if (!std::isnan(norm)) line_text += fmt::format("  norm {:.3f}", norm);
  // Of what workers have reported meanwhile, for whatever steps.
  if (const auto tokens_per_second = speed_.at_line(now_s())) {
    const AccountReading time = run_metrics_.take_interval();
    line_text += fmt::format("  {:>7.0f} tokens/s  utilization {:.1f} %  communication {:.1f} %", *tokens_per_second,
                             100 * utilization(time), 100 * communication_share(time));
  }
  say(line_text);
  interval_loss_ = {};
}

void RunLog::evaluation(const EvaluationResult& result) {
  evaluations_.push_back(result);
  evaluation_seconds_.push_back(seconds());
  const double bits_per_byte = result.nats / (std::numbers::ln2 * validation_bytes_);
  metrics_.append(json{
      {"kind", "evaluation"},
      {"step", result.step},
      {"loss", mean(result.nats, result.tokens)},
      {"bits_per_byte", bits_per_byte},
      {"tokens", result.tokens},
      {"seconds",
       seconds()}}.dump());
  say(fmt::format("validation after {}: {:.4f} bits per byte ({:.4f} nats/token, {} tokens)",
                  counted(result.step, "step"), bits_per_byte, mean(result.nats, result.tokens),
                  with_commas(result.tokens)));
  speed_.pause(now_s() - last_step_s_);
}

void RunLog::split_decision(const SplitDecision& decision) {
  split_decisions_.push_back(decision);
  const std::string text = text_of(decision, plan_.least_gang > 0);
  json line = json_of(decision);
  line.update({{"kind", "split_trial"}, {"text", text}, {"seconds", seconds()}});
  metrics_.append(line.dump());
  say(text);
}

void RunLog::checkpoint(int64_t step, const std::filesystem::path& path, const CheckpointCost& cost) {
  const auto steps = static_cast<double>(std::max<int64_t>(1, step - plan_.first_step));
  const double bytes_per_step = static_cast<double>(cost.logged_bytes) / steps;
  last_checkpoint_ = path;
  metrics_.append(json{{"kind", "checkpoint"},
                       {"step", step},
                       {"path", path.string()},
                       {"seconds", seconds()},
                       {"longest_copy_seconds", cost.longest_copy_s},
                       {"logged_bytes_per_step", bytes_per_step}}
                      .dump());
  run_metrics_.save_soon();
  std::string costs = fmt::format("copying a block took up to {:.2g} ms", 1e3 * cost.longest_copy_s);
  if (cost.logged_bytes > 0) {
    costs += fmt::format("; gradient log: {} a step", human_bytes(static_cast<int64_t>(bytes_per_step)));
  }
  say(fmt::format("checkpoint after {}: {} ({})", counted(step, "step"), path.string(), costs));
}

void RunLog::worker(const WorkerSummary& summary) {
  const auto known = [](double value) { return value < 0 ? json(nullptr) : json(value); };
  json activities;
  for (size_t a = 0; a < kActivities; ++a) activities[kActivityNames[a]] = summary.account.seconds.at(a);
  metrics_.append(json{{"kind", "worker"},
                       {"worker", summary.worker},
                       {"seconds", activities},
                       {"tokens", summary.tokens},
                       {"units", summary.units},
                       {"pulls", summary.pulls},
                       {"pulls_rejected", summary.pulls_rejected},
                       {"pulled_bytes", summary.pulled_bytes},
                       {"pulls_skipped", summary.pulls_skipped},
                       {"skipped_bytes", summary.skipped_bytes},
                       {"prefetches", summary.prefetches},
                       {"wrong_prefetches", summary.wrong_prefetches},
                       {"unit_time_error", known(summary.unit_time_error)},
                       {"pushed_bytes", summary.pushed_bytes},
                       {"exchanged_bytes", summary.exchanged_bytes},
                       {"resident_before", summary.resident_before},
                       {"peak_resident", summary.peak_resident},
                       {"shared_resident", summary.shared_resident},
                       {"emulated_s", summary.emulated_s},
                       {"mean_lag_s", summary.mean_lag_s},
                       {"worst_lag_s", summary.worst_lag_s},
                       {"mpi_seconds", summary.account.mpi_seconds},
                       {"barrier_transfer_seconds", summary.account.barrier_transfer_seconds},
                       {"gang_transfer_seconds", summary.account.gang_transfer_seconds},
                       {"utilization", utilization(summary.account)},
                       {"communication_share", communication_share(summary.account)},
                       {"wall_seconds", summary.wall_seconds},
                       {"node_joules", known(summary.node_joules)},
                       {"device_joules", known(summary.device_joules)},
                       {"device_utilization", known(summary.device_utilization)},
                       {"device_taken", summary.device_taken < 0 ? json(nullptr) : json(summary.device_taken)}}
                      .dump());
  run_metrics_.worker(summary);
  workers_.push_back(summary);
}

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

void RunLog::close_files() {
  metrics_.close();
  run_metrics_.finish();
}

void RunLog::say_files() const {
  say(fmt::format("files in {}: deck.toml, metrics.jsonl, metrics.h5, status.json, checkpoints/{}", run_.string(),
                  plan_.deck.log.payload == LogPayload::none ? "" : ", log/"));
  if (!last_checkpoint_.empty()) {
    // As this program was called: after a build it is not on the PATH yet.
    const char* hat = program_invocation_name;
    say(fmt::format("look into them:  {0} inspect {1}   h5ls -r {2}   h5dump -H {2}", hat, run_.string(),
                    (last_checkpoint_ / "checkpoint.h5").string()));
    say(fmt::format("use the model:   {} generate {} --prompt \"...\"", hat, run_.string()));
  }
  if (end_step_ < plan_.end_step) {
    say(fmt::format("continue it:     mpirun -n {} {} train {} --resume", plan_.roles.servers() + plan_.roles.workers(),
                    program_invocation_name, (run_ / "deck.toml").string()));
  }
}

void RunLog::stopping(int64_t steps, const std::string& reason) {
  end_step_ = steps;
  run_metrics_.end_at(steps);
  metrics_.append(json{{"kind", "stop"}, {"step", steps}, {"reason", reason}, {"seconds", seconds()}}.dump());
  say(fmt::format("stopping after {} steps of {}: {}", steps, plan_.end_step, reason));
}

void RunLog::mark_ended(const std::optional<std::string>& stop_reason) {
  if (stop_reason) {
    write_status({{"status", "stopped"}, {"reason", *stop_reason}, {"step", end_step_}});
  } else {
    write_status({{"status", "finished"}});
  }
}

RunResult RunLog::result() const {
  RunResult result{.steps = step_points_,
                   .evaluations = {},
                   .staleness_counts = staleness_counts_,
                   .workers = workers_,
                   .gangs = gangs_,
                   .gang_members = gang_members_,
                   .unsplit_steps = unsplit_steps_,
                   .split_decisions = split_decisions_,
                   .tokens = trained_tokens_,
                   .seconds = seconds()};
  for (size_t i = 0; i < evaluations_.size(); ++i) {
    const EvaluationResult& evaluation = evaluations_[i];
    result.evaluations.push_back({.step = evaluation.step,
                                  .loss = mean(evaluation.nats, evaluation.tokens),
                                  .bits_per_byte = evaluation.nats / (std::numbers::ln2 * validation_bytes_),
                                  .seconds = evaluation_seconds_[i]});
  }
  return result;
}

}  // namespace hat
