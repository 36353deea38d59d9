#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "commands/bench.hpp"
#include "hat/config/checks.hpp"
#include "hat/core/random.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/kernels/operations.hpp"

namespace hat {

namespace {

constexpr int64_t kMostTokens = 10'000'000;
// Of a query-key pair and head, in units of the head size: two products forward; backward the scores again, and the
// gradients of probabilities, queries, keys and values.
constexpr double kForwardFlop = 4.0;
constexpr double kBackwardFlop = 10.0;

struct AttentionBenchOptions {
  BenchOptions common;
  int64_t head_size = 64;
  int64_t heads = 12;
  int64_t kv_heads = 0;
  std::vector<std::string> lengths{"128", "512", "1024", "2048", "4096"};
  int64_t tokens = 4096;
  Precision precision = Precision::automatic;  // both
};

/// Documents of one length.
struct MeasuredLength {
  int64_t length = 0;
  Element arithmetic = Element::fp32;
  int64_t documents = 0;
  double pair_flop = 0.0;  ///< visible query-key pairs x heads x head size
  Spread forward;
  Spread backward;
  double forward_gflops() const { return kForwardFlop * pair_flop / forward.least / 1e9; }
  double backward_gflops() const { return kBackwardFlop * pair_flop / backward.least / 1e9; }
};

/// Everything that the two operations read and write. q, k and v are neighbours in a row, as in the model.
struct AttentionCase {
  AttentionCase(const Stream& on, const AttentionBenchOptions& options, Element element, int64_t length,
                int64_t documents)
      : stream(on), arithmetic(element), offsets(on.device(), documents + 1) {
    const int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads;
    shape = {.tokens = length * documents,
             .documents = documents,
             .offsets = offsets.data(),
             .heads = options.heads,
             .kv_heads = kv_heads,
             .head_size = options.head_size,
             .q_stride = (options.heads + 2 * kv_heads) * options.head_size,
             .kv_stride = (options.heads + 2 * kv_heads) * options.head_size};
    width = shape.heads * shape.head_size;
    std::vector<int32_t> host_offsets;
    for (int64_t i = 0; i <= documents; ++i) host_offsets.push_back(static_cast<int32_t>(i * length));
    copy_to_device(stream, host_offsets.data(), offsets.data(), offsets.size());
    qkv = random_values(shape.tokens * shape.q_stride, 0);
    rounded_qkv.grow(stream.device(), qkv.size());
    to_bfloat16(qkv.span(), rounded_qkv.span());
    d_out = random_values(shape.tokens * width, 1);
    d_qkv.grow(stream.device(), qkv.size());
    out.grow(stream.device(), shape.tokens * width);
    rounded_out.grow(stream.device(), shape.tokens * width);
    log_sum_exp.grow(stream.device(), shape.tokens * shape.heads);
    workspace.grow(stream.device(), ops.attention_workspace(stream, shape));
  }

  DeviceBuffer<float> random_values(int64_t count, uint64_t random_stream) const {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(2.0 * random_uniform(1, random_stream, i) - 1.0);
    }
    DeviceBuffer<float> buffer(stream.device(), count);
    copy_to_device(stream, values.data(), buffer.data(), count);
    return buffer;
  }

  int64_t key() const { return width; }
  int64_t value() const { return width + shape.kv_heads * shape.head_size; }
  ConstValues input() const {
    return arithmetic == Element::fp32 ? ConstValues(qkv.data()) : ConstValues(rounded_qkv.data());
  }
  Values output() { return arithmetic == Element::fp32 ? Values(out.data()) : Values(rounded_out.data()); }

  void forward() {
    ops.attention_forward(stream, shape, input(), input() + key(), input() + value(), output(), log_sum_exp.data(),
                          workspace.data());
    stream.synchronize();
  }

  void backward() {
    ops.attention_backward(stream, shape, input(), input() + key(), input() + value(), output(), log_sum_exp.data(),
                           d_out.data(), d_qkv.data(), d_qkv.data() + key(), d_qkv.data() + value(), workspace.data());
    stream.synchronize();
  }

  /// The first token of a document sees itself alone: its output is its value. Each output is a mean of values, all of
  /// which are in [-1, 1].
  void check() {
    if (arithmetic == Element::bf16) to_float(rounded_out.span(), out.span());
    std::vector<float> found(static_cast<size_t>(out.size()));
    std::vector<float> first(static_cast<size_t>(shape.head_size));
    copy_to_host(stream, out.data(), found.data(), out.size());
    copy_to_host(stream, qkv.data() + value(), first.data(), shape.head_size);
    stream.synchronize();
    bool is_right = true;
    for (size_t i = 0; i < first.size(); ++i) is_right = is_right && std::abs(found[i] - first[i]) < 1e-2F;
    for (const float x : found) is_right = is_right && std::abs(x) <= 1.01F;  // false for NaN
    if (!is_right) throw Error("the attention is wrong");
  }

  const Operations& ops = operations(DeviceKind::cpu);
  Stream stream;
  Element arithmetic;
  AttentionShape shape;
  int64_t width = 0;
  DeviceBuffer<int32_t> offsets;
  DeviceBuffer<float> qkv, d_qkv, out, d_out, log_sum_exp, workspace;
  DeviceBuffer<bfloat16> rounded_qkv, rounded_out;
};

MeasuredLength measure(const AttentionBenchOptions& options, Element arithmetic, int64_t length, int threads) {
  const Stream stream{Device{.kind = DeviceKind::cpu, .index = 0, .threads = threads}};
  MeasuredLength measured;
  measured.length = length;
  measured.arithmetic = arithmetic;
  measured.documents = std::max<int64_t>(1, options.tokens / length);
  const auto n = static_cast<double>(length);
  measured.pair_flop =
      0.5 * n * (n + 1.0) * static_cast<double>(measured.documents * options.heads * options.head_size);
  AttentionCase attention(stream, options, arithmetic, length, measured.documents);
  measured.forward = time_calls(options.common.runs, [&] { attention.forward(); });
  attention.check();
  measured.backward = time_calls(options.common.runs, [&] { attention.backward(); });
  return measured;
}

void check(const OptionSet& keys, const AttentionBenchOptions& options) {
  if (options.head_size % 2 != 0) {
    throw keys.error("head_size", fmt::format("{} is odd; it must be even", options.head_size));
  }
  if (options.kv_heads > 0 && options.heads % options.kv_heads != 0) {
    throw keys.error("kv_heads", fmt::format("{} do not divide {} heads", options.kv_heads, options.heads));
  }
}

void print_json(const AttentionBenchOptions& options, const std::vector<MeasuredLength>& lengths, int threads,
                const Machine& machine, const PeakRates& peaks) {
  nlohmann::ordered_json json = bench_json("bench attention", threads, machine, peaks);
  json["heads"] = options.heads;
  json["kv_heads"] = options.kv_heads > 0 ? options.kv_heads : options.heads;
  json["head_size"] = options.head_size;
  for (const MeasuredLength& measured : lengths) {
    json["lengths"].push_back(
        {{"length", measured.length},
         {"precision", name_of(measured.arithmetic)},
         {"documents", measured.documents},
         {"forward_s", to_json(measured.forward)},
         {"forward_gflops", measured.forward_gflops()},
         {"forward_share_of_peak", json_or_null(peaks.share(measured.forward_gflops(), measured.arithmetic))},
         {"backward_s", to_json(measured.backward)},
         {"backward_gflops", measured.backward_gflops()},
         {"backward_share_of_peak", json_or_null(peaks.share(measured.backward_gflops(), measured.arithmetic))}});
  }
  fmt::print("{}\n", json.dump(2));
}

void print_table(const std::vector<MeasuredLength>& lengths, const PeakRates& peaks) {
  Table table({"length", "documents", "precision", "forward ms", "GFLOP/s", "% of peak", "backward ms", "GFLOP/s",
               "% of peak"});
  for (const MeasuredLength& measured : lengths) {
    table.add({std::to_string(measured.length), std::to_string(measured.documents), name_of(measured.arithmetic),
               fmt::format("{:.3f}", 1e3 * measured.forward.least), fmt::format("{:.1f}", measured.forward_gflops()),
               percent(peaks.share(measured.forward_gflops(), measured.arithmetic)),
               fmt::format("{:.3f}", 1e3 * measured.backward.least), fmt::format("{:.1f}", measured.backward_gflops()),
               percent(peaks.share(measured.backward_gflops(), measured.arithmetic))});
  }
  table.print();
  fmt::print("\nthe fastest of the measurements; FLOP of the causal area alone: 4 and 10 head sizes a pair and head\n");
}

ExitCode bench_attention(OptionSet& keys, const AttentionBenchOptions& options) {
  keys.load(std::nullopt);
  check(keys, options);
  const Machine machine = describe_machine();
  const int threads = threads_to_use(options.common, machine);
  for (const std::string& length : options.lengths) {
    const auto tokens = static_cast<double>(std::max<int64_t>(options.tokens, std::stoll(length)));
    const auto width = static_cast<double>(options.heads) * static_cast<double>(options.head_size);
    // q, k, v and the output with their gradients, at most all of one width
    check_bytes(machine, fmt::format("attention of {} tokens", length), sizeof(float) * tokens * width * 8.0);
  }
  const std::vector<Element> arithmetics = elements_of(options.precision);
  PeakRates peaks(arithmetics, threads, machine);
  std::vector<MeasuredLength> measured;
  for (const std::string& length : options.lengths) {
    for (const Element arithmetic : arithmetics) {
      measured.push_back(measure(options, arithmetic, std::stoll(length), threads));
    }
  }
  peaks.measure_again();
  if (options.common.json) {
    print_json(options, measured, threads, machine, peaks);
  } else {
    print_bench_head(threads, machine, peaks);
    fmt::print("\n");
    print_table(measured, peaks);
  }
  return ExitCode::success;
}

}  // namespace

CommandBody add_bench_attention(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("attention", "Attention forward and backward on documents of given lengths");
  command->footer(
      "Examples: hat bench attention\n"
      "          hat bench attention --heads 8 --kv_heads 2 --lengths 300,8192 --threads 1");
  auto options = std::make_shared<AttentionBenchOptions>();
  auto keys = std::make_shared<OptionSet>(*command, "bench");
  add_bench_options(*command, *keys, options->common);
  keys->add("head_size", options->head_size, "Columns of a head; even")->check(integer_in(2, 4096));
  keys->add("heads", options->heads, "Query heads")->check(integer_in(1, 65536));
  keys->add("kv_heads", options->kv_heads, "Key/value heads, divides heads; 0: as many as heads")
      ->check(integer_in(0, 65536));
  keys->add_named<Precision>("precision", options->precision,
                             {{"all", Precision::automatic}, {"fp32", Precision::fp32}, {"bf16", Precision::bf16}},
                             "What is measured");
  keys->add("lengths", options->lengths, "Lengths to measure, in tokens")->check(integer_in(1, kMostTokens));
  keys->add("tokens", options->tokens, "As many documents of a length as have these tokens, at least one")
      ->check(integer_in(1, kMostTokens));
  return [keys, options] { return bench_attention(*keys, *options); };
}

}  // namespace hat
