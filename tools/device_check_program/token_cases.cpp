#include "gpu.hpp"

namespace hat::check_device {

namespace {

std::vector<int32_t> random_tokens(Gpu& gpu, int64_t count, int64_t below) {
  std::vector<int32_t> tokens;
  const uint64_t stream = gpu.next_stream();
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(
        static_cast<int32_t>(random_below(gpu.seed(), stream, static_cast<uint64_t>(i), static_cast<uint64_t>(below))));
  }
  return tokens;
}

std::vector<int32_t> positions_of(const Sizes& sizes) {
  std::vector<int32_t> positions;
  for (const int32_t length : sizes.documents) {
    for (int32_t i = 0; i < length; ++i) positions.push_back(i);
  }
  return positions;
}

std::vector<Case> embedding_cases(Gpu& gpu, const Sizes& sizes) {
  const int64_t T = sizes.T;
  const int64_t C = sizes.C;
  const int64_t longest = *std::max_element(sizes.documents.begin(), sizes.documents.end());
  auto tokens = integers(gpu, random_tokens(gpu, T, sizes.V));
  auto positions = integers(gpu, positions_of(sizes));
  auto table = random_array(gpu, sizes.V * C);
  auto position_table = random_array(gpu, longest * C);
  auto dy = random_array(gpu, T * C);
  auto y = poisoned_array(gpu, T * C);
  auto d_table = random_array(gpu, sizes.V * C);
  auto d_positions = random_array(gpu, longest * C);
  std::vector<int32_t> distinct = tokens->start();
  std::sort(distinct.begin(), distinct.end());
  const auto rows = std::unique(distinct.begin(), distinct.end()) - distinct.begin() + longest;
  return {{.name = "embedding_forward",
           .bytes = static_cast<double>(8 * T * C),
           .reset = [=] { y->reset(); },
           .run =
               [=, &gpu] {
                 gpu.operations().embedding_forward(gpu.stream(), T, C, tokens->data(), positions->data(),
                                                    table->data(), position_table->data(), y->data());
               },
           .error =
               [=] {
                 std::vector<double> right;
                 for (int64_t i = 0; i < T * C; ++i) {
                   const auto t = static_cast<size_t>(i / C);
                   right.push_back(table->start(tokens->start()[t] * C + i % C) +
                                   position_table->start(positions->start()[t] * C + i % C));
                 }
                 return distance(y->read(), right) / kFp32;
               }},
          {.name = "embedding_backward",
           .bytes = static_cast<double>(4 * T * C + 8 * rows * C),
           .reset = [=] { d_table->reset(), d_positions->reset(); },
           .run =
               [=, &gpu] {
                 gpu.operations().embedding_backward(gpu.stream(), T, C, tokens->data(), positions->data(), dy->data(),
                                                     d_table->data(), d_positions->data());
               },
           .error =
               [=] {
                 std::vector<double> right(static_cast<size_t>(d_table->size()));
                 std::vector<double> right_positions(static_cast<size_t>(d_positions->size()));
                 for (size_t i = 0; i < right.size(); ++i) right[i] = d_table->start(static_cast<int64_t>(i));
                 for (size_t i = 0; i < right_positions.size(); ++i) {
                   right_positions[i] = d_positions->start(static_cast<int64_t>(i));
                 }
                 for (int64_t i = 0; i < T * C; ++i) {
                   const auto t = static_cast<size_t>(i / C);
                   right[static_cast<size_t>(tokens->start()[t] * C + i % C)] += dy->start(i);
                   right_positions[static_cast<size_t>(positions->start()[t] * C + i % C)] += dy->start(i);
                 }
                 return std::max(distance(d_table->read(), right), distance(d_positions->read(), right_positions)) /
                        kFp32;
               }}};
}

Case cross_entropy_case(Gpu& gpu, const Sizes& sizes) {
  // Logits of some thousand tokens at a time, as the model has them.
  const int64_t T = std::min<int64_t>(sizes.T, 2048);
  const int64_t V = sizes.V;
  const int64_t stride = V + 3;
  std::vector<int32_t> some = random_tokens(gpu, T, V);
  some[static_cast<size_t>(T / 2)] = -1;
  auto targets = integers(gpu, std::move(some));
  auto logits = random_array(gpu, T * stride, 10.0);
  auto nats = poisoned_array<double>(gpu, T);
  return {.name = "cross_entropy",
          .bytes = static_cast<double>(8 * T * V),
          .reset = [=] { logits->reset(), nats->reset(); },
          .run =
              [=, &gpu] {
                gpu.operations().cross_entropy(gpu.stream(), CrossEntropyOutput::loss_and_gradient, T, V, stride,
                                               targets->data(), logits->data(), nats->data());
              },
          .error =
              [=] {
                std::vector<double> right(static_cast<size_t>(T * stride));
                std::vector<double> right_nats(static_cast<size_t>(T));
                for (int64_t t = 0; t < T; ++t) {
                  double sum = 0;
                  for (int64_t i = 0; i < V; ++i) sum += std::exp(logits->start(t * stride + i));
                  const int32_t target = targets->start()[static_cast<size_t>(t)];
                  for (int64_t i = 0; i < stride; ++i) {
                    const double probability = std::exp(logits->start(t * stride + i)) / sum;
                    double value = target < 0 ? 0.0 : probability - (i == target ? 1.0 : 0.0);
                    if (i >= V) value = logits->start(t * stride + i);
                    right[static_cast<size_t>(t * stride + i)] = value;
                    if (i == target) right_nats[static_cast<size_t>(t)] = -std::log(probability);
                  }
                }
                return std::max(distance(logits->read(), right), distance(nats->read(), right_nats)) / kFp32;
              }};
}

std::vector<Case> rope_cases(Gpu& gpu, const Sizes& sizes) {
  const int64_t T = sizes.T;
  const int64_t D = sizes.D;
  const int64_t heads = sizes.heads + sizes.kv_heads;
  const int64_t N = (sizes.heads + 2 * sizes.kv_heads) * D;
  const int64_t longest = *std::max_element(sizes.documents.begin(), sizes.documents.end());
  constexpr double kBase = 10000;
  auto positions = integers(gpu, positions_of(sizes));
  auto cosine = poisoned_array(gpu, longest * D / 2);
  auto sine = poisoned_array(gpu, longest * D / 2);
  auto x = random_array(gpu, T * N);
  auto bias = random_array(gpu, N);
  auto y = poisoned_array<bfloat16>(gpu, T * N);
  auto dx = random_array(gpu, T * N);
  const auto make_table = [=, &gpu] {
    gpu.operations().rope_table(gpu.stream(), longest, D, kBase, cosine->data(), sine->data());
  };
  const auto rotated = [=](const Array<float>& from, const Array<float>* added, double sign) {
    std::vector<double> right(static_cast<size_t>(T * N));
    for (int64_t i = 0; i < T * N; ++i) {
      right[static_cast<size_t>(i)] = from.start(i) + (added == nullptr ? 0.0 : added->start(i % N));
    }
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t pair = 0; pair < heads * D / 2; ++pair) {
        const int64_t i = pair % (D / 2);
        const double angle = positions->start()[static_cast<size_t>(t)] *
                             std::pow(kBase, -2.0 * static_cast<double>(i) / static_cast<double>(D));
        double& low = right[static_cast<size_t>(t * N + pair / (D / 2) * D + i)];
        double& high = (&low)[D / 2];
        const double before = low;
        low = before * std::cos(angle) - sign * high * std::sin(angle);
        high = high * std::cos(angle) + sign * before * std::sin(angle);
      }
    }
    return right;
  };
  return {{.name = "rope_table",
           .bytes = static_cast<double>(4 * longest * D),
           .reset = [=] { cosine->reset(), sine->reset(); },
           .run = make_table,
           .error =
               [=] {
                 std::vector<double> right_cosine;
                 std::vector<double> right_sine;
                 for (int64_t i = 0; i < longest * D / 2; ++i) {
                   const double angle =
                       static_cast<double>(i / (D / 2)) *
                       std::pow(kBase, -2.0 * static_cast<double>(i % (D / 2)) / static_cast<double>(D));
                   right_cosine.push_back(std::cos(angle));
                   right_sine.push_back(std::sin(angle));
                 }
                 return std::max(distance(cosine->read(), right_cosine), distance(sine->read(), right_sine)) / kFp32;
               }},
          {.name = "rope_forward",
           .bytes = static_cast<double>(6 * T * N),
           .reset =
               [=] {
                 y->reset();
                 make_table();
               },
           .run =
               [=, &gpu] {
                 gpu.operations().rope_forward(gpu.stream(), T, N, heads, D, positions->data(), cosine->data(),
                                               sine->data(), bias->data(), x->data(), Values(y->data()));
               },
           .error = [=] { return distance(y->read(), rotated(*x, bias.get(), 1)) / kUnit; }},
          {.name = "rope_backward",
           .bytes = static_cast<double>(8 * T * heads * D),
           .reset =
               [=] {
                 dx->reset();
                 make_table();
               },
           .run =
               [=, &gpu] {
                 gpu.operations().rope_backward(gpu.stream(), T, N, heads, D, positions->data(), cosine->data(),
                                                sine->data(), dx->data());
               },
           .error = [=] { return distance(dx->read(), rotated(*dx, nullptr, -1)) / kFp32; }}};
}

}  // namespace

std::vector<Case> token_cases(Gpu& gpu, const Sizes& sizes) {
  std::vector<Case> cases = embedding_cases(gpu, sizes);
  for (Case& rope : rope_cases(gpu, sizes)) cases.push_back(std::move(rope));
  cases.push_back(cross_entropy_case(gpu, sizes));
  return cases;
}

}  // namespace hat::check_device
