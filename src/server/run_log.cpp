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
#include "server/run_lines.hpp"

namespace hat {

using nlohmann::json;

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
                       {"device", name_of(plan_.compute.device)},
                       {"device_bytes", plan_.device_bytes},
                       {"precision", name_of(plan_.compute.arithmetic)},
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
