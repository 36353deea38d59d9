#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands/compute_choice.hpp"
#include "commands/machine.hpp"
#include "hat/commands/benchmark.hpp"
#include "hat/commands/ceilings.hpp"
#include "hat/commands/commands.hpp"
#include "hat/config/deck.hpp"
#include "hat/config/option_set.hpp"

namespace hat {

/// Each adds its subcommand to `bench` and returns its body.
CommandBody add_bench_gemm(CLI::App& bench);
CommandBody add_bench_attention(CLI::App& bench);
CommandBody add_bench_train(CLI::App& bench);
CommandBody add_bench_longtail(CLI::App& bench);

// What they have in common.

struct BenchOptions {
  int64_t threads = 0;  ///< 0: left open
  int64_t runs = 5;
  bool json = false;
};

/// Adds them to a subcommand. `keys` has the section "bench".
void add_bench_options(CLI::App& command, OptionSet& keys, BenchOptions& options);

/// The file of a deck that need not be named.
std::optional<std::filesystem::path> deck_file(const std::string& deck);

/// Threads to use on this machine: --threads, the deck's if it sets worker.threads, or all cores. More than there are
/// cores is allowed.
int threads_to_use(const BenchOptions& options, const Machine& machine);
int threads_to_use(const BenchOptions& options, const Machine& machine, const OptionSet& keys, const Deck& deck);

/// Throws InputError when `what` needs more bytes than this machine has.
void check_bytes(const Machine& machine, const std::string& what, double bytes);

/// What a precision stands for: both when it is left open.
std::vector<Element> elements_of(Precision precision);

/// The model of a deck whose vocabulary may be left to a dataset that is not there: then the byte tokenizer's.
void fill_vocabulary(ModelConfig& model);

/// How fast the cores multiply and add at the beginning and at the end of a bench. The larger of the two is the
/// ceiling, the difference shows how much the machine's speed changed meanwhile.
class PeakRates {
 public:
  /// Measures the rates for `arithmetics` on one core and on min(threads, cores) cores.
  PeakRates(const std::vector<Element>& arithmetics, int threads, const Machine& machine);
  void measure_again();

  /// GFLOP/s of all used cores together; empty where there is no such instruction.
  std::optional<double> gflops(Element arithmetic) const;
  /// The part of it that some work reached; empty likewise.
  std::optional<double> share(double gflops_of_work, Element arithmetic) const;

  nlohmann::ordered_json json() const;
  /// One line for each arithmetic.
  void print() const;

 private:
  struct Rate {
    Element arithmetic;
    std::optional<double> one_core;
    std::optional<double> before;  // all used cores
    std::optional<double> after;
  };
  int cores_;
  std::vector<Rate> rates_;
};

const char* name_of(ModelFamily family);

/// Rows of text in columns: the first column to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "94.1", or "none".
std::string percent(const std::optional<double>& share);
nlohmann::ordered_json json_or_null(const std::optional<double>& value);

/// {"median": .., "least": .., "most": ..}
nlohmann::ordered_json to_json(const Spread& spread);

/// What every document begins with: the command, the program, the machine, threads and peaks.
nlohmann::ordered_json bench_json(const std::string& command, int threads, const Machine& machine,
                                  const PeakRates& peaks);
/// The same as lines above a table.
void print_bench_head(int threads, const Machine& machine, const PeakRates& peaks);

/// Seconds of one call of `work`: `runs` measurements after a first call that is not counted, each of as many calls as
/// make it last 20 ms.
Spread time_calls(int64_t runs, const std::function<void()>& work);

}  // namespace hat
