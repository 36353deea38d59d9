#include "training.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <span>
#include <thread>

#include "../../kernels/cuda_operations.hpp"
#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"
#include "hat/device/cuda.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/model/transformer.hpp"

// A worker's pass and an update, without what a run has beside them: servers, whose optimizer is AdamW, and the way
// there. So it is compared with PyTorch's pass and the same update (pytorch_rates.py).
namespace hat::check_device {

namespace {

/// And a batch of equally long documents.
struct Model {
  const char* name;
  ModelConfig config;
  int64_t documents;
  int64_t length;
  double measured_s;  ///< steps are counted until so much time is over
};

// The decks of these names say the same, and so does pytorch_rates.py of the batches.
const Model kModels[] = {
    {.name = "gpt2_124m",
     .config = {.family = ModelFamily::gpt2,
                .width = 768,
                .layers = 12,
                .heads = 12,
                .max_length = 1024,
                .vocabulary = 50257,
                .tied = true},
     .documents = 16,
     .length = 1024,
     .measured_s = 3},
    {.name = "llama_1_3b",
     .config = {.width = 2048,
                .layers = 24,
                .heads = 16,
                .mlp_width = 5504,
                .max_length = 4096,
                .vocabulary = 32000,
                .tied = true},
     .documents = 4,
     .length = 2048,
     .measured_s = 5},
    {.name = "tiny",
     .config = {.width = 32, .layers = 2, .heads = 4, .kv_heads = 2, .max_length = 64, .vocabulary = 61, .tied = true},
     .documents = 3,
     .length = 17,
     .measured_s = 0},
};

const Model& model_of(const std::string& name) {
  const Model* const found =
      std::find_if(std::begin(kModels), std::end(kModels), [&](const Model& m) { return name == m.name; });
  if (found == std::end(kModels)) throw Error("there is no model '" + name + "' to train");
  return *found;
}

PackedBatch random_batch(const Model& model, uint64_t seed) {
  PackedBatch batch;
  batch.offsets.push_back(0);
  uint64_t counter = 0;
  for (int64_t d = 0; d < model.documents; ++d) {
    for (int64_t t = 0; t < model.length; ++t) {
      const auto draw = [&] {
        return static_cast<int32_t>(random_below(seed, 0, counter++, static_cast<uint64_t>(model.config.vocabulary)));
      };
      batch.inputs.push_back(draw());
      batch.targets.push_back(draw());
    }
    batch.offsets.push_back(static_cast<int32_t>(batch.inputs.size()));
  }
  return batch;
}

/// Start values of a block, made by all processors: a billion takes one a minute.
std::vector<float> start_values(const ModelLayout& layout, int64_t block, uint64_t seed) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<float> values(static_cast<size_t>(layout.blocks[static_cast<size_t>(block)].size));
  std::atomic<int64_t> next = 0;
  const auto fill = [&] {
    for (int64_t begin = next.fetch_add(kPiece); begin < std::ssize(values); begin = next.fetch_add(kPiece)) {
      initialize(layout, block, begin, values.data() + begin, std::min(kPiece, std::ssize(values) - begin), seed);
    }
  };
  const int64_t pieces = (std::ssize(values) + kPiece - 1) / kPiece;
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < std::min<int64_t>(pieces, std::thread::hardware_concurrency()); ++i)
    others.emplace_back(fill);
  fill();
  return values;
}

/// Parameters and their gradients, on the card.
struct Trained {
  Trained(Gpu& gpu, const ModelLayout& layout) {
    const Device& device = gpu.stream().device();
    for (size_t block = 0; block < layout.blocks.size(); ++block) {
      const std::vector<float> start = start_values(layout, static_cast<int64_t>(block), gpu.seed());
      values.emplace_back(device, std::ssize(start));
      gradients.emplace_back(device, std::ssize(start));
      copy_to_device(gpu.stream(), start.data(), values.back().data(), std::ssize(start));
      gpu.stream().synchronize();
      value_pointers.push_back(values.back().data());
      gradient_pointers.push_back(gradients.back().data());
    }
  }

  /// Nats of a token, before the update.
  double step(Gpu& gpu, Transformer& model, const PackedBatch& batch) {
    constexpr float kRate = 0.3F;
    const Operations& ops = gpu.operations();
    for (DeviceBuffer<float>& gradient : gradients) {
      ops.fill(gpu.stream(), gradient.size(), 0.0F, gradient.data());
    }
    PassObserver nobody;
    const LossSum loss = model.gradient(batch, value_pointers, gradient_pointers, nobody);
    for (size_t block = 0; block < values.size(); ++block) {
      const int64_t size = values[block].size();
      ops.scale(gpu.stream(), size, -kRate / static_cast<float>(loss.tokens), gradients[block].data());
      ops.residual_forward(gpu.stream(), 1, size, gradients[block].data(), nullptr, values[block].data());
    }
    gpu.cuda().synchronize();
    return loss.nats / static_cast<double>(loss.tokens);
  }

  std::vector<DeviceBuffer<float>> values;  ///< by block
  std::vector<DeviceBuffer<float>> gradients;
  ParameterPointers value_pointers;
  GradientPointers gradient_pointers;
};

}  // namespace

Training measure_training(Gpu& gpu, const std::string& name) {
  constexpr int kWarmUps = 2;  // buffers grow in the first, and products are chosen
  constexpr size_t kFewestSteps = 5;
  constexpr double kGiB = 1 << 30;
  const Model& wanted = model_of(name);
  const ComputeOptions options{
      .arithmetic = Element::bf16, .operations = &cuda::cuda_operations(), .device = DeviceKind::cuda};
  Transformer model(wanted.config, options, gpu.stream());
  const int64_t parameters = model.layout().size();
  const PackedBatch batch = random_batch(wanted, gpu.seed());
  const auto tokens = static_cast<int64_t>(batch.inputs.size());
  const auto needed = static_cast<double>(2 * parameters * static_cast<int64_t>(sizeof(float)) +
                                          model.buffer_bytes(tokens, wanted.length));
  const auto free = static_cast<double>(cuda::free_bytes(gpu.stream().device().index));
  if (constexpr double kUsable = 0.9; needed > kUsable * free) {
    std::printf("training %s: left out, it needs %.1f GiB and the card has %.1f free\n", wanted.name, needed / kGiB,
                free / kGiB);
    return Training::left_out;
  }

  Trained trained(gpu, model.layout());
  const double first_loss = trained.step(gpu, model, batch);
  double last_loss = first_loss;
  for (int i = 1; i < kWarmUps; ++i) last_loss = trained.step(gpu, model, batch);
  std::vector<double> seconds;
  for (double begin_s = now_s(); seconds.size() < kFewestSteps || now_s() - begin_s < wanted.measured_s;) {
    const double step_s = now_s();
    last_loss = trained.step(gpu, model, batch);
    seconds.push_back(now_s() - step_s);
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  const double median_s = seconds[seconds.size() / 2];
  std::printf(
      "training %-10s HAT              %10.0f tokens/s %lld parameters (%lld x %lld tokens a step of %.1f ms, "
      "%.1f TFLOP/s, loss %.3f to %.3f)\n",
      wanted.name, static_cast<double>(tokens) / median_s, static_cast<long long>(parameters),
      static_cast<long long>(wanted.documents), static_cast<long long>(wanted.length), 1e3 * median_s,
      static_cast<double>(wanted.documents) * model.flop(wanted.length) / median_s / 1e12, first_loss, last_loss);
  return last_loss < first_loss ? Training::learns : Training::learns_nothing;  // nothing, too, if it is no number
}

}  // namespace hat::check_device
