#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "commands/bench.hpp"
#include "commands/local_training.hpp"
#include "commands/timed_operations.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/core/proc.hpp"
#include "hat/core/random.hpp"
#include "hat/core/text.hpp"

namespace hat {

namespace {

constexpr int64_t kMostTokens = 100'000'000;  // of a step, which is one process's memory

struct TrainBenchOptions {
  BenchOptions common;
  std::string deck;
  std::vector<std::string> lengths{"fixed"};
  int64_t length = 1024;
  int64_t tokens = 4096;
  int64_t warm_ups = 2;  ///< buffers grow in the first
  bool optimizer_step = true;
};

/// The documents of a step and what was measured on them.
struct Batch {
  std::string name;
  std::vector<int64_t> lengths;
  std::vector<PackedBatch> units;
  int64_t tokens = 0;
  double flop = 0.0;            ///< of the model, by Transformer::flop
  double attention_flop = 0.0;  ///< done by the two attention kernels
  std::vector<double> step_s;
  StepSeconds sum;  ///< of the counted steps
  Spread step() const { return spread_of(step_s); }
  double gflops() const { return flop / step().median / 1e9; }
  double runs() const { return static_cast<double>(step_s.size()); }
  double attention_gflops() const { return attention_flop * runs() / sum.attention / 1e9; }
};

struct MemoryUse {
  int64_t peak_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t activation_bytes = 0;  ///< kept and scratch buffers of the model
  /// The rest: program, libraries, documents; what of the buffers was never touched is missing in it.
  int64_t program_bytes() const {
    return std::max<int64_t>(0, peak_bytes - parameter_bytes - gradient_bytes - optimizer_bytes - activation_bytes);
  }
};

struct Measured {
  std::vector<Batch> batches;  ///< the one asked for; beside a long tail also the fixed one it is compared with
  MemoryUse memory;
  ComputeOptions compute;
  double first_loss = 0.0;
  double last_loss = 0.0;
  /// FLOP/s on the long tail over FLOP/s on equal lengths.
  std::optional<double> efficiency() const {
    if (batches.size() < 2) return std::nullopt;
    return batches[0].gflops() / batches[1].gflops();
  }
};

std::vector<int64_t> lengths_of(const TrainBenchOptions& options, const OptionSet& keys, uint64_t seed) {
  if (options.lengths == std::vector<std::string>{"fixed"}) return fixed_lengths(options.tokens, options.length);
  if (options.lengths == std::vector<std::string>{"long_tail"}) return long_tail_lengths(options.tokens, seed);
  std::vector<int64_t> lengths;
  for (const std::string& text : options.lengths) {
    std::string value = text;
    if (!integer_in(1, kMostTokens)(value).empty()) {
      throw keys.error("lengths",
                       fmt::format("'{}' is neither fixed, long_tail nor a list of lengths in tokens", text));
    }
    lengths.push_back(std::stoll(value));
  }
  return lengths;
}

/// Documents of random tokens, each followed by the next.
PackedBatch random_documents(const std::vector<int64_t>& lengths, int64_t vocabulary, uint64_t seed, uint64_t stream) {
  PackedBatch batch;
  batch.offsets.push_back(0);
  uint64_t counter = 0;
  for (const int64_t length : lengths) {
    const auto draw = [&] {
      return static_cast<int32_t>(random_below(seed, stream, counter++, static_cast<uint64_t>(vocabulary)));
    };
    int32_t token = draw();
    for (int64_t i = 0; i < length; ++i) {
      batch.inputs.push_back(token);
      token = draw();
      batch.targets.push_back(token);
    }
    batch.offsets.push_back(static_cast<int32_t>(batch.inputs.size()));
  }
  return batch;
}

/// Whole documents in units of at most `unit_tokens` tokens (one unit of everything when 0), as a worker gets them.
std::vector<std::vector<int64_t>> units_of(const std::vector<int64_t>& lengths, int64_t unit_tokens) {
  std::vector<std::vector<int64_t>> units;
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    if (units.empty() || (unit_tokens > 0 && tokens + length > unit_tokens)) {
      units.emplace_back();
      tokens = 0;
    }
    units.back().push_back(length);
    tokens += length;
  }
  return units;
}

/// 4 and 10 head sizes for a visible query-key pair and head, forward (twice where it is recomputed) and backward.
double attention_flop(const Transformer& model, const std::vector<int64_t>& lengths) {
  double pairs = 0.0;
  for (const int64_t n : lengths) pairs += 0.5 * static_cast<double>(n) * static_cast<double>(n + 1);
  const double flop_of_pair = model.options().recompute == Recompute::full ? 18.0 : 14.0;
  return flop_of_pair * pairs * static_cast<double>(model.config().width * model.config().layers);
}

Batch make_batch(const std::string& name, std::vector<int64_t> lengths, const Deck& deck, const Transformer& model) {
  Batch batch;
  batch.name = name;
  for (const std::vector<int64_t>& unit : units_of(lengths, deck.unit_tokens)) {
    batch.units.push_back(random_documents(unit, deck.model.vocabulary, deck.seed, batch.units.size()));
  }
  batch.tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const int64_t length : lengths) batch.flop += model.flop(length);
  batch.attention_flop = attention_flop(model, lengths);
  batch.lengths = std::move(lengths);
  return batch;
}

void check_lengths(const OptionSet& bench_keys, const OptionSet& keys, const Deck& deck,
                   const std::vector<int64_t>& lengths) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (tokens > kMostTokens) {
    throw bench_keys.error("lengths", fmt::format("{} tokens are more than the {} of a step", with_commas(tokens),
                                                  with_commas(kMostTokens)));
  }
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest <= deck.model.max_length) return;
  throw keys.error("model.max_length", fmt::format("{} is less than the longest document of the bench, {} tokens",
                                                   deck.model.max_length, longest));
}

/// Bytes of everything that a step on these documents needs.
int64_t needed_bytes(const Deck& deck, const ComputeOptions& compute, const std::vector<int64_t>& lengths) {
  Transformer model(deck.model, compute);
  int64_t buffers = 0;
  for (const std::vector<int64_t>& unit : units_of(lengths, deck.unit_tokens)) {
    const int64_t tokens = std::accumulate(unit.begin(), unit.end(), int64_t{0});
    buffers = std::max(buffers, model.buffer_bytes(tokens, *std::max_element(unit.begin(), unit.end())));
  }
  int64_t values = 2 * model.layout().size();  // parameters and gradients
  for (const BlockSpec& block : model.layout().blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      values += static_cast<int64_t>(state_names(deck.optimizer.kind, tensor).size()) * tensor.size();
    }
  }
  return values * static_cast<int64_t>(sizeof(float)) + buffers;
}

/// The deck's choice or, where it is left open, the first that fits into memory. Throws InputError when none does.
Recompute choose_recompute(const OptionSet& keys, const Deck& deck, ComputeOptions compute,
                           const std::vector<int64_t>& lengths, const Machine& machine) {
  const auto bytes = [&](Recompute level) {
    compute.recompute = level;
    return needed_bytes(deck, compute, lengths);
  };
  const int64_t limit = deck.worker.memory_gib > 0
                            ? static_cast<int64_t>(deck.worker.memory_gib * static_cast<double>(int64_t{1} << 30))
                            : machine.available_bytes;
  if (const auto level = first_that_fits(deck.worker.recompute, bytes, limit)) return *level;
  throw keys.error(
      KeyError(deck.worker.memory_gib > 0 ? "worker.memory_gib" : "model",
               fmt::format("a step needs {} of memory, and there are {} for it; lower unit_tokens, "
                           "worker.chunk_tokens or the model",
                           human_bytes(bytes(levels_of(deck.worker.recompute).back())), human_bytes(limit))));
}

/// The deck's precision or, where it is left open, the one in which the model's matrix products are faster here (fp32
/// if the deck wants to be deterministic).
Element choose_arithmetic(const Deck& deck, const ComputeOptions& compute) {
  const std::vector<Element> open = elements_of(deck.precision);
  if (open.size() == 1 || deck.deterministic) return open.front();
  return faster_of(measure_products(deck.model, compute));
}

ComputeOptions choose_compute(const OptionSet& keys, const Deck& deck, const std::vector<std::vector<int64_t>>& lengths,
                              int threads, const Machine& machine) {
  if (deck.device == "cuda")
    throw keys.error(KeyError("device", "cuda is for training; the bench measures CPUs, and tools/device_check GPUs"));
  ComputeOptions compute{.threads = threads,
                         .arithmetic = Element::fp32,
                         .recompute = Recompute::none,
                         .chunk_tokens = deck.worker.chunk_tokens,
                         .operations = nullptr};
  compute.arithmetic = choose_arithmetic(deck, compute);
  for (const std::vector<int64_t>& batch : lengths) {  // all are computed by one model: the most thrifty choice
    compute.recompute = std::max(compute.recompute, choose_recompute(keys, deck, compute, batch, machine));
  }
  return compute;
}

int64_t buffer_bytes(Transformer& model, const Batch& batch) {
  int64_t most = 0;
  for (const PackedBatch& unit : batch.units) {
    const auto tokens = static_cast<int64_t>(unit.inputs.size());
    most = std::max(most, model.buffer_bytes(tokens, *std::max_element(batch.lengths.begin(), batch.lengths.end())));
  }
  return most;
}

/// Steps on the batches in turn, so that a slower moment of the machine meets all of them.
Measured measure(const TrainBenchOptions& options, const Deck& deck, const ComputeOptions& compute,
                 std::vector<std::vector<int64_t>> lengths) {
  Measured measured;
  measured.compute = compute;
  LocalTraining training(deck, compute);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const std::string name = i > 0 ? "fixed" : fmt::format("{}", fmt::join(options.lengths, ","));
    Batch batch = make_batch(name, std::move(lengths[i]), deck, training.model());
    for (int64_t run = 0; run < options.warm_ups; ++run) {
      training.step(batch.units, options.optimizer_step);
      if (i == 0 && run == 0) measured.first_loss = training.loss();
    }
    if (i == 0) measured.memory.peak_bytes = peak_resident_bytes();
    measured.batches.push_back(std::move(batch));
  }
  for (int64_t run = 0; run < options.common.runs; ++run) {
    for (Batch& batch : measured.batches) {
      const StepSeconds seconds = training.step(batch.units, options.optimizer_step);
      batch.step_s.push_back(seconds.total);
      batch.sum += seconds;
    }
  }
  measured.last_loss = training.loss();
  measured.memory.parameter_bytes = training.parameter_bytes();
  measured.memory.gradient_bytes = training.parameter_bytes();
  measured.memory.optimizer_bytes = training.optimizer_bytes();
  measured.memory.activation_bytes = buffer_bytes(training.model(), measured.batches.front());
  return measured;
}

nlohmann::ordered_json model_json(const ModelConfig& model, int64_t parameters) {
  return {{"family", name_of(model.family)},
          {"width", model.width},
          {"layers", model.layers},
          {"heads", model.heads},
          {"kv_heads", kv_heads(model)},
          {"mlp_width", mlp_width(model)},
          {"max_length", model.max_length},
          {"vocabulary", model.vocabulary},
          {"tied", model.tied},
          {"parameters", parameters}};
}

/// Means over the counted runs.
nlohmann::ordered_json seconds_json(const Batch& batch) {
  return {{"products", batch.sum.products / batch.runs()},
          {"attention", batch.sum.attention / batch.runs()},
          {"loss", batch.sum.loss / batch.runs()},
          {"optimizer", batch.sum.optimizer / batch.runs()},
          {"rest", batch.sum.rest() / batch.runs()}};
}

nlohmann::ordered_json batch_json(const Batch& batch, Element arithmetic, const PeakRates& peaks) {
  const Spread step = batch.step();
  return {{"lengths", batch.name},
          {"documents", batch.lengths.size()},
          {"longest", *std::max_element(batch.lengths.begin(), batch.lengths.end())},
          {"tokens", batch.tokens},
          {"units", batch.units.size()},
          {"flop", batch.flop},
          {"step_s", to_json(step)},
          {"tokens_per_s", static_cast<double>(batch.tokens) / step.median},
          {"gflops", batch.gflops()},
          {"share_of_peak", json_or_null(peaks.share(batch.gflops(), arithmetic))},
          {"seconds", seconds_json(batch)},
          {"attention_gflops", batch.attention_gflops()},
          {"attention_share_of_peak", json_or_null(peaks.share(batch.attention_gflops(), arithmetic))}};
}

void print_json(const Measured& measured, const TrainBenchOptions& options, const Deck& deck, int threads,
                const Machine& machine, const PeakRates& peaks) {
  nlohmann::ordered_json json = bench_json("bench train", threads, machine, peaks);
  json["deck"] = options.deck;
  json["model"] = model_json(deck.model, measured.memory.parameter_bytes / static_cast<int64_t>(sizeof(float)));
  json["precision"] = name_of(measured.compute.arithmetic);
  json["recompute"] = name_of(measured.compute.recompute);
  json["chunk_tokens"] = measured.compute.chunk_tokens;
  json["runs"] = options.common.runs;
  json["optimizer_step"] = options.optimizer_step;
  for (const Batch& batch : measured.batches)
    json["batches"].push_back(batch_json(batch, measured.compute.arithmetic, peaks));
  json["efficiency_against_fixed"] = json_or_null(measured.efficiency());
  const MemoryUse& memory = measured.memory;
  json["memory"] = {{"peak_bytes", memory.peak_bytes},
                    {"parameter_bytes", memory.parameter_bytes},
                    {"gradient_bytes", memory.gradient_bytes},
                    {"optimizer_bytes", memory.optimizer_bytes},
                    {"activation_bytes", memory.activation_bytes},
                    {"program_bytes", memory.program_bytes()}};
  for (const auto& [name, seconds] : seconds_by_operation()) json["operation_seconds"][name] = seconds;
  json["loss"] = {{"first", measured.first_loss}, {"last", measured.last_loss}};
  fmt::print("{}\n", json.dump(2));
}

void print_speed(const Measured& measured, const PeakRates& peaks) {
  Table table({"documents", "number", "longest", "tokens", "median s", "least s", "most s", "tokens/s", "GFLOP/s",
               "% of peak"});
  for (const Batch& batch : measured.batches) {
    const Spread step = batch.step();
    const bool is_list = batch.name.find(',') != std::string::npos;
    table.add({is_list ? "as listed" : batch.name, with_commas(static_cast<int64_t>(batch.lengths.size())),
               with_commas(*std::max_element(batch.lengths.begin(), batch.lengths.end())), with_commas(batch.tokens),
               fmt::format("{:.4f}", step.median), fmt::format("{:.4f}", step.least), fmt::format("{:.4f}", step.most),
               fmt::format("{:.1f}", static_cast<double>(batch.tokens) / step.median),
               fmt::format("{:.1f}", batch.gflops()),
               percent(peaks.share(batch.gflops(), measured.compute.arithmetic))});
  }
  table.print();
  if (measured.efficiency())
    fmt::print("\nlong tail against fixed: {:.1f} % of the FLOP/s\n", 100.0 * *measured.efficiency());
}

void print_time(const Batch& batch, Element arithmetic, const PeakRates& peaks) {
  Table table({"where the time goes", "s a step", "%"});
  const auto add = [&](const char* name, double seconds) {
    table.add({name, fmt::format("{:.4f}", seconds / batch.runs()),
               fmt::format("{:.1f}", 100.0 * seconds / batch.sum.total)});
  };
  add("matrix products", batch.sum.products);
  add("attention", batch.sum.attention);
  add("loss (head)", batch.sum.loss);
  add("optimizer", batch.sum.optimizer);
  add("the rest", batch.sum.rest());
  table.print();
  fmt::print("attention computes at {:.1f} GFLOP/s ({} % of peak), counted on the causal area\n",
             batch.attention_gflops(), percent(peaks.share(batch.attention_gflops(), arithmetic)));
}

void print_tables(const Measured& measured, const Deck& deck, int threads, const Machine& machine,
                  const PeakRates& peaks) {
  const MemoryUse& memory = measured.memory;
  print_bench_head(threads, machine, peaks);
  fmt::print("{:<12}{}, {} wide, {} layers, {} heads, vocabulary {}{}: {} parameters\n", "model",
             name_of(deck.model.family), deck.model.width, deck.model.layers, deck.model.heads,
             with_commas(deck.model.vocabulary), deck.model.tied ? ", tied" : "",
             with_commas(memory.parameter_bytes / static_cast<int64_t>(sizeof(float))));
  fmt::print("{:<12}{}, recompute {}, chunks of {} tokens\n\n", "arithmetic", name_of(measured.compute.arithmetic),
             name_of(measured.compute.recompute), with_commas(measured.compute.chunk_tokens));
  print_speed(measured, peaks);
  fmt::print("\n");
  print_time(measured.batches.front(), measured.compute.arithmetic, peaks);
  fmt::print(
      "\nmemory: {} at most; parameters {}, gradients {}, optimizer {}, activations and scratch {}, program {}\n",
      human_bytes(memory.peak_bytes), human_bytes(memory.parameter_bytes), human_bytes(memory.gradient_bytes),
      human_bytes(memory.optimizer_bytes), human_bytes(memory.activation_bytes), human_bytes(memory.program_bytes()));
}

ExitCode bench_train(OptionSet& bench_keys, OptionSet& keys, const TrainBenchOptions& options, Deck& deck) {
  bench_keys.load(deck_file(options.deck));
  keys.load(deck_file(options.deck));
  fill_vocabulary(deck.model);
  const Machine machine = describe_machine();
  const int threads = threads_to_use(options.common, machine, keys, deck);
  std::vector<std::vector<int64_t>> lengths{lengths_of(options, bench_keys, deck.seed)};
  if (options.lengths.front() == "long_tail") lengths.push_back(fixed_lengths(options.tokens, options.length));
  for (const std::vector<int64_t>& batch : lengths) check_lengths(bench_keys, keys, deck, batch);
  const ComputeOptions compute = choose_compute(keys, deck, lengths, threads, machine);
  PeakRates peaks({compute.arithmetic}, threads, machine);
  const Measured measured = measure(options, deck, compute, std::move(lengths));
  peaks.measure_again();
  if (options.common.json) {
    print_json(measured, options, deck, threads, machine, peaks);
  } else {
    print_tables(measured, deck, threads, machine, peaks);
  }
  return ExitCode::success;
}

}  // namespace

CommandBody add_bench_train(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "train", "Whole training steps of a deck's model in this process, on random tokens; no data, no messages");
  command->footer(
      "Examples: hat bench train inputs/bench_gpt2_512.toml\n"
      "          hat bench train inputs/bench_llama_512.toml --lengths long_tail --tokens 32768 --unit_tokens 8192\n"
      "          hat bench train inputs/bench_gpt2_256.toml --lengths 100,2000,4000 --model.layers 4 --json\n"
      "FLOP: 6 N a token (N without position embeddings) and 6 n^2 width a layer and document of n tokens.");
  auto options = std::make_shared<TrainBenchOptions>();
  auto deck = std::make_shared<Deck>();
  auto bench_keys = std::make_shared<OptionSet>(*command, "bench");
  auto keys = std::make_shared<OptionSet>(*command);
  command->add_option("deck", options->deck, "Deck to take model, optimizer and unit_tokens from");
  add_bench_options(*command, *bench_keys, options->common);
  bench_keys->add("lengths", options->lengths,
                  "Of the documents: fixed, long_tail (beside fixed, for comparison), or numbers of tokens");
  bench_keys->add("length", options->length, "Tokens of a document where lengths are fixed")
      ->check(integer_in(1, kMostTokens));
  bench_keys->add("tokens", options->tokens, "Tokens of a step; the last document stays whole")
      ->check(integer_in(1, kMostTokens));
  bench_keys->add("warm_ups", options->warm_ups, "Steps that are not counted before those that are")
      ->check(integer_in(1, 1'000'000));
  bench_keys->add_flag("optimizer_step", options->optimizer_step, "Norm, clipping and update after the gradient");
  add_deck_keys(*keys, *deck);
  return [bench_keys, keys, options, deck] {
    return keys->naming_places([&] { return bench_train(*bench_keys, *keys, *options, *deck); });
  };
}

}  // namespace hat
