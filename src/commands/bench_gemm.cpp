#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "commands/bench.hpp"
#include "hat/config/checks.hpp"
#include "hat/config/deck_schema.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/model/layout.hpp"

namespace hat {

namespace {

constexpr int64_t kLargest = 1 << 20;  // of m, n and k

struct GemmBenchOptions {
  BenchOptions common;
  std::string deck;
  std::vector<std::string> shapes;
  int64_t rows = 1024;
};

/// c (m, n) = op(a) (m, k) op(b) (k, n), or += .
struct Product {
  std::string name;  // of the weight, "" for a bare shape
  const char* direction;
  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  float beta = 0.0F;
  double flop() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct MeasuredProduct {
  Product product;
  Element arithmetic;
  Spread seconds;
  double gflops() const { return product.flop() / seconds.least / 1e9; }
};

/// What a model does with a weight (out, in) and `rows` tokens.
void add_products_of(const std::string& name, int64_t out, int64_t in, int64_t rows, std::vector<Product>& products) {
  products.push_back({name, "forward", Transpose::no, Transpose::yes, rows, out, in, 0.0F});
  products.push_back({name, "input gradient", Transpose::no, Transpose::no, rows, in, out, 0.0F});
  products.push_back({name, "weight gradient", Transpose::yes, Transpose::no, out, in, rows, 1.0F});
}

/// Every distinct weight of the model; those that one product computes together (q, k, v; gate, up) are one.
std::vector<Product> products_of(const ModelConfig& model, int64_t rows) {
  make_layout(model);  // refuses impossible sizes
  const int64_t C = model.width;
  const int64_t F = mlp_width(model);
  const bool gpt2 = model.family == ModelFamily::gpt2;
  std::vector<Product> products;
  add_products_of("q k v", C + 2 * kv_heads(model) * (C / model.heads), C, rows, products);
  add_products_of("o", C, C, rows, products);
  add_products_of(gpt2 ? "up" : "gate up", gpt2 ? F : 2 * F, C, rows, products);
  add_products_of("down", C, F, rows, products);
  add_products_of("output", model.vocabulary, C, rows, products);
  return products;
}

/// "m,n,k".
Product parse_shape(const std::string& text) {
  std::vector<int64_t> sizes;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string size = text.substr(begin, end - begin);
    if (!integer_in(1, kLargest)(size).empty()) break;
    sizes.push_back(std::stoll(size));
    begin = end + 1;
  }
  if (sizes.size() != 3 || begin <= text.size()) {
    throw InputError(
        "command line", "--shapes",
        fmt::format("'{}' is not m,n,k with numbers from 1 to {} (name a deck before --shapes)", text, kLargest));
  }
  return {.name = "", .direction = "product", .m = sizes[0], .n = sizes[1], .k = sizes[2]};
}

MeasuredProduct measure(const Product& product, Element arithmetic, int threads, int64_t runs) {
  const Stream stream{Device{.kind = DeviceKind::cpu, .index = 0, .threads = threads}};
  const Operations& ops = operations(DeviceKind::cpu);
  const int64_t m = product.m;
  const int64_t n = product.n;
  const int64_t k = product.k;
  DeviceBuffer<float> a(stream.device(), m * k);
  DeviceBuffer<float> b(stream.device(), k * n);
  DeviceBuffer<float> c(stream.device(), m * n);
  ops.fill(stream, a.size(), 0.5F, a.data());
  ops.fill(stream, b.size(), 2.0F, b.data());
  const auto multiply = [&] {
    ops.gemm(stream, arithmetic, product.transpose_a, product.transpose_b, m, n, k, 1.0F, a.data(),
             product.transpose_a == Transpose::yes ? m : k, b.data(), product.transpose_b == Transpose::yes ? k : n,
             product.beta, c.data(), n);
    stream.synchronize();
  };
  ops.fill(stream, c.size(), 0.0F, c.data());
  multiply();
  std::array<float, 2> corners{};
  copy_to_host(stream, c.data(), corners.data(), 1);
  copy_to_host(stream, c.data() + c.size() - 1, corners.data() + 1, 1);
  for (const float corner : corners) {  // sums of ones, exact
    if (corner != static_cast<float>(k)) throw Error(fmt::format("the product {} x {} x {} is wrong", m, n, k));
  }
  return {product, arithmetic, time_calls(runs, multiply)};
}

nlohmann::ordered_json product_json(const MeasuredProduct& measured, const PeakRates& peaks) {
  const Product& product = measured.product;
  return {{"weight", product.name},
          {"direction", product.direction},
          {"m", product.m},
          {"n", product.n},
          {"k", product.k},
          {"precision", name_of(measured.arithmetic)},
          {"seconds", to_json(measured.seconds)},
          {"gflops", measured.gflops()},
          {"share_of_peak", json_or_null(peaks.share(measured.gflops(), measured.arithmetic))}};
}

void print_table(const std::vector<MeasuredProduct>& products, const PeakRates& peaks) {
  Table table({"weight", "product", "m", "n", "k", "precision", "median ms", "least ms", "GFLOP/s", "% of peak"});
  for (const MeasuredProduct& measured : products) {
    const Product& product = measured.product;
    table.add({product.name, product.direction, std::to_string(product.m), std::to_string(product.n),
               std::to_string(product.k), name_of(measured.arithmetic),
               fmt::format("{:.3f}", 1e3 * measured.seconds.median),
               fmt::format("{:.3f}", 1e3 * measured.seconds.least), fmt::format("{:.1f}", measured.gflops()),
               percent(peaks.share(measured.gflops(), measured.arithmetic))});
  }
  table.print();
  fmt::print("\nGFLOP/s of the fastest measurement, as the peak is; operands are stored in fp32, as weights are\n");
}

ExitCode bench_gemm(OptionSet& bench_keys, OptionSet& keys, const GemmBenchOptions& options, Deck& deck) {
  bench_keys.load(deck_file(options.deck));
  keys.load(deck_file(options.deck));
  fill_vocabulary(deck.model);
  std::vector<Product> products;
  for (const std::string& shape : options.shapes) products.push_back(parse_shape(shape));
  if (products.empty()) products = products_of(deck.model, options.rows);
  const Machine machine = describe_machine();
  const int threads = threads_to_use(options.common, machine, keys, deck);
  for (const Product& product : products) {
    const auto [m, n, k] =
        std::array{static_cast<double>(product.m), static_cast<double>(product.n), static_cast<double>(product.k)};
    check_bytes(machine, fmt::format("the product {} x {} x {}", product.m, product.n, product.k),
                sizeof(float) * (m * k + k * n + m * n));
  }
  const std::vector<Element> arithmetics = elements_of(deck.precision);
  PeakRates peaks(arithmetics, threads, machine);
  std::vector<MeasuredProduct> measured;
  for (const Product& product : products) {
    for (const Element arithmetic : arithmetics) {
      measured.push_back(measure(product, arithmetic, threads, options.common.runs));
    }
  }
  peaks.measure_again();
  if (options.common.json) {
    nlohmann::ordered_json json = bench_json("bench gemm", threads, machine, peaks);
    for (const MeasuredProduct& product : measured) json["products"].push_back(product_json(product, peaks));
    fmt::print("{}\n", json.dump(2));
  } else {
    print_bench_head(threads, machine, peaks);
    fmt::print("\n");
    print_table(measured, peaks);
  }
  return ExitCode::success;
}

}  // namespace

CommandBody add_bench_gemm(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("gemm", "The matrix products of a deck's model, or of given shapes");
  command->footer(
      "Examples: hat bench gemm inputs/bench_gpt2_124m.toml --threads 1\n"
      "          hat bench gemm --shapes 1024,1024,1024 64,256,64\n"
      "Both precisions, unless precision names one. "
      "With weights W (out, in): forward y = x W^T, input gradient dx = dy W, weight gradient dW += dy^T x.");
  auto options = std::make_shared<GemmBenchOptions>();
  auto deck = std::make_shared<Deck>();
  auto bench_keys = std::make_shared<OptionSet>(*command, "bench");
  auto keys = std::make_shared<OptionSet>(*command);
  command->add_option("deck", options->deck, "Deck to take the model from");
  add_bench_options(*command, *bench_keys, options->common);
  command->add_option("--shapes", options->shapes,
                      "m,n,k of products c (m, n) = a (m, k) b (k, n), instead of a model's");
  bench_keys->add("rows", options->rows, "Tokens that go through the weights at once")->check(integer_in(1, kLargest));
  add_deck_keys(*keys, *deck);
  return [bench_keys, keys, options, deck] {
    return keys->naming_places([&] { return bench_gemm(*bench_keys, *keys, *options, *deck); });
  };
}

}  // namespace hat
