#include "commands/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "hat/config/checks.hpp"
#include "hat/core/build_info.hpp"
#include "hat/core/clock.hpp"
#include "hat/dataset/dataset.hpp"

namespace hat {

namespace {

constexpr double kMeasurementSeconds = 0.02;  // long against the clock's steps and the start of threads

}  // namespace

void add_bench_options(CLI::App& command, OptionSet& keys, BenchOptions& options) {
  keys.add("threads", options.threads, "Threads of the arithmetic; 0: the deck's worker.threads, or all cores")
      ->check(integer_in(0, 4096));
  keys.add("runs", options.runs, "Measurements, after warm-ups that are not counted")->check(integer_in(1, 1'000'000));
  command.add_flag("--json", options.json, "Print a JSON object instead of the table")->check(true_or_false());
}

int threads_to_use(const BenchOptions& options, const Machine& machine) {
  return options.threads > 0 ? static_cast<int>(options.threads) : machine.cores;
}

int threads_to_use(const BenchOptions& options, const Machine& machine, const OptionSet& keys, const Deck& deck) {
  const bool is_in_deck = options.threads == 0 && !keys.is_default("worker.threads");
  return is_in_deck ? static_cast<int>(deck.worker.threads) : threads_to_use(options, machine);
}

std::optional<std::filesystem::path> deck_file(const std::string& deck) {
  return deck.empty() ? std::nullopt : std::optional<std::filesystem::path>(deck);
}

void check_bytes(const Machine& machine, const std::string& what, double bytes) {
  if (machine.available_bytes == 0 || bytes <= static_cast<double>(machine.available_bytes)) return;
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  throw InputError("command line", what,
                   fmt::format("needs {:.3g} GiB of memory, and there are {:.3g} GiB", bytes / kGiB,
                               static_cast<double>(machine.available_bytes) / kGiB));
}

std::vector<Element> elements_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return {Element::fp32};
    case Precision::bf16:
      return {Element::bf16};
    case Precision::automatic:
      break;
  }
  return {Element::fp32, Element::bf16};
}

void fill_vocabulary(ModelConfig& model) {
  if (model.vocabulary == 0) model.vocabulary = make_byte_tokenizer()->vocabulary();
}

const char* name_of(ModelFamily family) { return family == ModelFamily::llama ? "llama" : "gpt2"; }

PeakRates::PeakRates(const std::vector<Element>& arithmetics, int threads, const Machine& machine)
    : cores_(std::min(threads, machine.cores)) {
  for (const Element arithmetic : arithmetics) {
    rates_.push_back({.arithmetic = arithmetic,
                      .one_core = multiply_add_gflops(arithmetic, 1),
                      .before = multiply_add_gflops(arithmetic, cores_),
                      .after = std::nullopt});
  }
}

void PeakRates::measure_again() {
  for (Rate& rate : rates_) {
    rate.one_core = std::max(rate.one_core, multiply_add_gflops(rate.arithmetic, 1));
    rate.after = multiply_add_gflops(rate.arithmetic, cores_);
  }
}

std::optional<double> PeakRates::gflops(Element arithmetic) const {
  const auto found =
      std::find_if(rates_.begin(), rates_.end(), [&](const Rate& rate) { return rate.arithmetic == arithmetic; });
  if (found == rates_.end()) return std::nullopt;
  return std::max(found->before, found->after);  // an empty one is less than any number
}

std::optional<double> PeakRates::share(double gflops_of_work, Element arithmetic) const {
  const std::optional<double> peak = gflops(arithmetic);
  return peak ? std::optional<double>(gflops_of_work / *peak) : std::nullopt;
}

nlohmann::ordered_json PeakRates::json() const {
  nlohmann::ordered_json json{{"cores", cores_}};
  for (const Rate& rate : rates_) {
    json[name_of(rate.arithmetic)] = {{"gflops", json_or_null(gflops(rate.arithmetic))},
                                      {"before", json_or_null(rate.before)},
                                      {"after", json_or_null(rate.after)},
                                      {"one_core", json_or_null(rate.one_core)}};
  }
  return json;
}

void PeakRates::print() const {
  for (const Rate& rate : rates_) {
    if (!rate.before) {
      fmt::print("{:<12}no {} multiply-add instruction in this build\n", "peak", name_of(rate.arithmetic));
      continue;
    }
    fmt::print("{:<12}{} multiply-add, {} {}: {:.1f} GFLOP/s ({:.1f} before, {:.1f} after); one core: {:.1f}\n", "peak",
               name_of(rate.arithmetic), cores_, cores_ == 1 ? "core" : "cores", *gflops(rate.arithmetic), *rate.before,
               rate.after.value_or(0.0), *rate.one_core);
  }
}

void Table::print() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line = fmt::format("{:<{}}", row.front(), widths.front());
    for (size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    fmt::print("{}\n", line);
  }
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", 100.0 * *share) : std::string("none");
}

nlohmann::ordered_json json_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

nlohmann::ordered_json bench_json(const std::string& command, int threads, const Machine& machine,
                                  const PeakRates& peaks) {
  return {{"command", command},
          {"version", build_info().version},
          {"revision", build_info().revision},
          {"processor", machine.processor},
          {"cores", machine.cores},
          {"threads", threads},
          {"peak", peaks.json()}};
}

void print_bench_head(int threads, const Machine& machine, const PeakRates& peaks) {
  fmt::print("{:<12}{}, {} cores\n", "machine", machine.processor, machine.cores);
  fmt::print("{:<12}{}{}\n", "threads", threads,
             threads > machine.cores ? ", more than there are cores: shares of the peak are of the cores" : "");
  peaks.print();
}

Spread time_calls(int64_t runs, const std::function<void()>& work) {
  work();  // buffers, threads and generated code of the libraries come into being
  const double trial_start_s = now_s();
  work();
  const double trial_s = now_s() - trial_start_s;
  const auto calls = std::max<int64_t>(1, static_cast<int64_t>(kMeasurementSeconds / trial_s));
  std::vector<double> seconds;
  for (int64_t run = 0; run < runs; ++run) {
    const double start_s = now_s();
    for (int64_t call = 0; call < calls; ++call) work();
    seconds.push_back((now_s() - start_s) / static_cast<double>(calls));
  }
  return spread_of(std::move(seconds));
}

CommandBody add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "How fast this machine computes, against what it could");
  command->require_subcommand(1);
  command->footer(
      "Examples: hat bench train inputs/bench_gpt2_512.toml --precision bf16\n"
      "          hat bench gemm inputs/bench_gpt2_124m.toml --threads 1\n"
      "          hat bench attention --lengths 1024,4096\n"
      "          mpirun -n 17 hat bench longtail inputs/bench_longtail.toml\n"
      "All but longtail run without mpirun, in one process. 'hat bench NAME --help' explains each.");
  const std::vector<std::pair<const char*, CommandBody>> benches{{"train", add_bench_train(*command)},
                                                                 {"gemm", add_bench_gemm(*command)},
                                                                 {"attention", add_bench_attention(*command)},
                                                                 {"longtail", add_bench_longtail(*command)}};
  return [command, benches] {
    for (const auto& [name, body] : benches) {
      if (command->got_subcommand(name)) return body();
    }
    return ExitCode::failure;  // not reached: one subcommand is required
  };
}

}  // namespace hat
