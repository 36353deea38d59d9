#include "hat/model/transformer.hpp"

#include <algorithm>
#include <vector>

#include "attention_block.hpp"
#include "batch_upload.hpp"
#include "hat/core/error.hpp"
#include "hat/model/flop_count.hpp"
#include "head_block.hpp"
#include "mlp_block.hpp"
#include "staged_exchange.hpp"

namespace hat {

int64_t tensor_offset(const BlockSpec& block, const char* name) {
  for (const TensorSpec& tensor : block.tensors) {
    if (tensor.name == name) return tensor.offset;
  }
  throw Error(fmt::format("block {} has no tensor {}", block.name, name));
}

namespace {

struct Layer {
  AttentionBlock attention;
  MlpBlock mlp;
  DeviceBuffer<float> input;      ///< (T, C), of the attention block
  DeviceBuffer<float> mlp_input;  ///< (T, C); not with Recompute::full
};

// Numbers of the blocks in the layout: embedding, then attention and MLP of each layer, then head.
constexpr size_t kEmbedding = 0;
size_t attention_index(size_t layer) { return 1 + 2 * layer; }
size_t mlp_index(size_t layer) { return 2 + 2 * layer; }

}  // namespace

struct Transformer::Impl {
  Impl(const ModelConfig& model, const ComputeOptions& compute, const Stream& own_stream)
      : config(model),
        options(compute),
        layout(make_layout(model)),
        stream(own_stream),
        device(stream.device()),
        ops(compute.operations == nullptr ? operations(device.kind) : *compute.operations),
        upload(model, device),
        head(model, layout.blocks.back()),
        scratch(compute.arithmetic),
        staged(stream, compute.arithmetic),
        rounded(layout.blocks.size()) {
    if (options.threads < 1) throw Error(fmt::format("a model cannot run on {} threads", options.threads));
    if (options.recompute == Recompute::automatic) throw Error("what a model keeps must be decided before it is made");
    if (options.chunk_tokens < 1) throw Error(fmt::format("a chunk cannot have {} tokens", options.chunk_tokens));
    layers.reserve(static_cast<size_t>(model.layers));
    for (size_t l = 0; l < static_cast<size_t>(model.layers); ++l) {
      layers.push_back({.attention = AttentionBlock(model, static_cast<int64_t>(l), layout.blocks[attention_index(l)],
                                                    options.recompute, options.arithmetic),
                        .mlp = MlpBlock(model, layout.blocks[mlp_index(l)], options.recompute, options.arithmetic),
                        .input = {},
                        .mlp_input = {}});
    }
  }

  size_t head_index() const { return layout.blocks.size() - 1; }
  PassContext context(const DeviceBatch& batch, PassObserver& observer, RangeExchange* exchange) {
    if ((batch.range != nullptr) != (exchange != nullptr)) {
      throw Error(batch.range != nullptr ? "a range of a document cannot be computed without those before it"
                                         : "whole documents have nothing to exchange");
    }
    if (exchange != nullptr && device.kind != DeviceKind::cpu) {
      staged.begin(*exchange, observer, *batch.range, kv_width());
      exchange = &staged;
    }
    return {ops, stream, batch, scratch, options.arithmetic, options.chunk_tokens, observer, exchange};
  }

  /// All buffers whose size follows from the tokens of a batch; `range` is null for whole documents.
  template <typename Visit>
  void buffers(int64_t tokens, int64_t documents, const GangRange* range, Visit& visit) {
    for (Layer& layer : layers) {
      layer.attention.buffers(tokens, visit);
      layer.mlp.buffers(tokens, visit);
      visit(layer.input, tokens * config.width);
      if (options.recompute != Recompute::full) visit(layer.mlp_input, tokens * config.width);
    }
    if (options.recompute == Recompute::full) visit(shared_mlp_input, tokens * config.width);
    head.buffers(tokens, visit);
    visit(d_residual, tokens * config.width);
    scratch_buffers(tokens, visit);
    if (range == nullptr) {
      visit(scratch.attention, ops.attention_workspace(stream, shape(tokens, documents)));
    } else {
      range_buffers(*range, visit);
      if (on_device()) staged.buffers(*range, kv_width(), visit);
    }
  }
  bool on_device() const { return options.device != DeviceKind::cpu || device.kind != DeviceKind::cpu; }

  /// The same, and what brings a batch to the device.
  template <typename Visit>
  void all_buffers(const BatchSize& size, int64_t documents, Visit& visit) {
    buffers(size.tokens, documents, size.range ? &*size.range : nullptr, visit);
    upload.buffers(size.tokens, size.longest, visit);
    for (size_t block = 0; block < rounded.size(); ++block) {
      if (rounds_once(block)) visit(rounded[block], layout.blocks[block].size);
    }
  }
  /// On the CPU products round while they bring operands to where they are computed with.
  bool rounds_once(size_t block) const {
    return on_device() && options.arithmetic == Element::bf16 && (block != kEmbedding || config.tied);
  }

  /// Bytes that operations on a batch of so many tokens need beside their arguments.
  int64_t scratch_bytes(int64_t tokens) const {
    const int64_t C = config.width;
    const int64_t F = mlp_width(config);
    const int64_t up_width = config.family == ModelFamily::gpt2 ? F : 2 * F;
    const int64_t qkv_width = C + kv_width();
    const int64_t chunk = std::min(tokens, options.chunk_tokens);
    const int64_t head_rows = head.piece_rows(tokens);
    int64_t most = std::max(ops.column_sums_scratch(chunk, std::max({C, qkv_width, up_width})),
                            ops.column_sums_scratch(head_rows, C));
    // y = x weight^T, dx = dy weight and d_weight = dy^T x, with a weight (out, in) that is rounded already where
    // BlockParameters::weight says so; the others of fp32, which takes most.
    const auto product = [&](int64_t rows, int64_t out, int64_t in) {
      const bool is_rounded = on_device() && options.arithmetic == Element::bf16 && BlockParameters::fits(in);
      const Element weight = is_rounded ? Element::bf16 : Element::fp32;
      const auto bytes = [&](Transpose a, Transpose b, int64_t m, int64_t n, int64_t k, Element right) {
        return ops.gemm_scratch(options.arithmetic, a, b, m, n, k, Element::fp32, right);
      };
      most = std::max({most, bytes(Transpose::no, Transpose::yes, rows, out, in, weight),
                       bytes(Transpose::no, Transpose::no, rows, in, out, weight),
                       bytes(Transpose::yes, Transpose::no, out, in, rows, Element::fp32)});
    };
    product(chunk, qkv_width, C);
    product(chunk, C, C);
    product(chunk, up_width, C);
    product(chunk, C, F);
    product(head_rows, config.vocabulary, C);
    return most;
  }

  template <typename Visit>
  void scratch_buffers(int64_t tokens, Visit& visit) {
    const int64_t C = config.width;
    const int64_t F = mlp_width(config);
    const int64_t up_width = config.family == ModelFamily::gpt2 ? F : 2 * F;
    const int64_t qkv_width = C + kv_width();
    const int64_t chunk = std::min(tokens, options.chunk_tokens);
    visit(scratch.normed, chunk * C);
    visit(scratch.d_normed, chunk * C);
    visit(scratch.wide, chunk * up_width);
    visit(scratch.middle, chunk * F);
    if (options.arithmetic != Element::fp32) visit(scratch.product, chunk * qkv_width);
    if (options.recompute != Recompute::none) {
      visit(scratch.up, chunk * up_width);
      visit(scratch.qkv, tokens * qkv_width);
    }
    if (options.recompute == Recompute::full) {
      visit(scratch.attended, tokens * C);
      visit(scratch.log_sum_exp, tokens * config.heads);
    }
    visit(scratch.d_attended, tokens * C);
    visit(scratch.d_qkv, tokens * qkv_width);
  }

  /// What the attention of a range needs.
  template <typename Visit>
  void range_buffers(const GangRange& range, Visit& visit) {
    int64_t longest_earlier = 0;
    for (int64_t member = 0; member < range.member; ++member) {
      longest_earlier = std::max(longest_earlier, range.tokens_of(member));
    }
    visit(scratch.maxima, range.tokens() * config.heads);
    visit(scratch.divisors, range.tokens() * config.heads);
    visit(scratch.d_earlier, longest_earlier * kv_width());
    const int64_t most_keys = std::max(longest_earlier, range.tokens());
    visit(scratch.attention, ops.attention_segment_workspace(stream, shape(range.tokens(), 1), most_keys));
  }

  /// For the sizes of workspaces.
  AttentionShape shape(int64_t tokens, int64_t documents) const {
    return {.tokens = tokens,
            .documents = documents,
            .offsets = nullptr,
            .heads = config.heads,
            .kv_heads = kv_heads(config),
            .head_size = config.width / config.heads};
  }
  /// Of the keys and values of a token, together.
  int64_t kv_width() const { return 2 * kv_heads(config) * (config.width / config.heads); }

  /// Checks a batch, makes what is missing for it, and brings it to the device.
  DeviceBatch begin(const PackedBatch& batch, PassObserver& observer) {
    upload.check(batch);
    const BatchSize size{.tokens = static_cast<int64_t>(batch.inputs.size()),
                         .longest = BatchUpload::longest_of(batch),
                         .range = batch.range};
    const auto documents = static_cast<int64_t>(batch.offsets.size()) - 1;
    if (device.kind != DeviceKind::cpu) {
      FindGrowth growth{.found = scratch_bytes(size.tokens) > reserved_scratch};
      all_buffers(size, documents, growth);
      if (growth.found) observer.before_growth();
    }
    grow(size, documents);
    return upload.upload(ops, stream, batch);
  }
  void grow(const BatchSize& size, int64_t documents) {
    GrowBuffers visit{device};
    all_buffers(size, documents, visit);
    if (device.kind == DeviceKind::cpu || scratch_bytes(size.tokens) <= reserved_scratch) return;
    reserved_scratch = scratch_bytes(size.tokens);
    ops.reserve(stream, reserved_scratch);
  }

  float* mlp_input(size_t l) {
    return options.recompute == Recompute::full ? shared_mlp_input.data() : layers[l].mlp_input.data();
  }

  /// Runs all blocks up to the head's input.
  void forward(const PassContext& pass, Forward purpose, const ParameterPointers& parameters, PassObserver& observer) {
    begin_block(kEmbedding, parameters, observer);
    const float* tokens = parameters[kEmbedding];
    const float* positions =
        config.family == ModelFamily::gpt2 ? tokens + layout.blocks[kEmbedding].tensors[1].offset : nullptr;
    ops.embedding_forward(stream, pass.batch.tokens, config.width, pass.batch.inputs, pass.batch.positions, tokens,
                          positions, layers.front().input.data());
    for (size_t l = 0; l < layers.size(); ++l) {
      Layer& layer = layers[l];
      const BlockParameters attention = begin_block(attention_index(l), parameters, observer);
      layer.attention.forward(pass, purpose, attention, layer.input.data(), mlp_input(l));
      const BlockParameters mlp = begin_block(mlp_index(l), parameters, observer);
      float* next = l + 1 < layers.size() ? layers[l + 1].input.data() : head.input();
      layer.mlp.forward(pass, mlp, mlp_input(l), next);
    }
    begin_block(head_index(), parameters, observer);
  }

  /// Runs all blocks below the head, from the gradient of the head's input in d_residual.
  void backward(const PassContext& pass, const ParameterPointers& parameters, const GradientPointers& gradients,
                PassObserver& observer) {
    for (size_t l = layers.size(); l-- > 0;) {
      Layer& layer = layers[l];
      const BlockParameters attention_parameters = in_pass(attention_index(l), parameters);
      if (options.recompute == Recompute::full) {
        layer.attention.forward(pass, Forward::repeated, attention_parameters, layer.input.data(), mlp_input(l));
      }
      layer.mlp.backward(pass, in_pass(mlp_index(l), parameters), mlp_input(l), d_residual.data(),
                         gradients[mlp_index(l)]);
      observer.after_backward(static_cast<int64_t>(mlp_index(l)));
      layer.attention.backward(pass, attention_parameters, layer.input.data(), d_residual.data(),
                               gradients[attention_index(l)]);
      observer.after_backward(static_cast<int64_t>(attention_index(l)));
    }
    float* d_tokens = gradients[kEmbedding];
    float* d_positions =
        config.family == ModelFamily::gpt2 ? d_tokens + layout.blocks[kEmbedding].tensors[1].offset : nullptr;
    ops.embedding_backward(stream, pass.batch.tokens, config.width, pass.batch.inputs, pass.batch.positions,
                           d_residual.data(), d_tokens, d_positions);
    observer.after_backward(kEmbedding);
    observer.wait_for(stream);
  }

  /// The block is used in this pass from now on.
  BlockParameters begin_block(size_t block, const ParameterPointers& parameters, PassObserver& observer) {
    observer.before_forward(static_cast<int64_t>(block));
    if (rounded[block].size() > 0) ops.round(stream, rounded[block].size(), parameters[block], rounded[block].data());
    return in_pass(block, parameters);
  }
  BlockParameters in_pass(size_t block, const ParameterPointers& parameters) const {
    return {.values = parameters[block], .rounded = rounded[block].data()};
  }

  ConstValues output_weight(const ParameterPointers& parameters) const {
    return head.output_weight(in_pass(head_index(), parameters), in_pass(kEmbedding, parameters));
  }

  ModelConfig config;
  ComputeOptions options;
  ModelLayout layout;
  Stream stream;
  Device device;
  const Operations& ops;
  BatchUpload upload;
  std::vector<Layer> layers;
  HeadBlock head;
  Scratch scratch;
  StagedExchange staged;                        ///< not on the CPU
  std::vector<DeviceBuffer<bfloat16>> rounded;  ///< by block: the parameters of the pass, where they are rounded once
  int64_t reserved_scratch = 0;                 ///< bytes that the stream has for operations, by this model
  DeviceBuffer<float> d_residual;               ///< (T, C), gradient of the residual stream on its way down
  DeviceBuffer<float> shared_mlp_input;         ///< (T, C), of the layer at hand, with Recompute::full
};

namespace {

int64_t count_targets(const PackedBatch& batch) {
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t target) { return target >= 0; });
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const ComputeOptions& options)
    : Transformer(config, options, Stream(options.device_at(0))) {}
Transformer::Transformer(const ModelConfig& config, const ComputeOptions& options, const Stream& stream)
    : impl_(std::make_unique<Impl>(config, options, stream)) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;

const ModelLayout& Transformer::layout() const { return impl_->layout; }
const ModelConfig& Transformer::config() const { return impl_->config; }
const ComputeOptions& Transformer::options() const { return impl_->options; }

int64_t Transformer::buffer_bytes(int64_t tokens, int64_t longest) {
  CountBytes count;
  impl_->buffers(tokens, /*documents=*/tokens, /*range=*/nullptr, count);
  impl_->upload.buffers(tokens, longest, count);
  return count.bytes;
}

int64_t Transformer::buffer_bytes(const GangRange& range) {
  CountBytes count;
  impl_->buffers(range.tokens(), /*documents=*/1, &range, count);
  impl_->upload.buffers(range.tokens(), range.end(), count);
  return count.bytes +
         impl_->config.layers * range.begin() * impl_->kv_width() * element_bytes(impl_->options.arithmetic);
}

void Transformer::reserve(std::span<const BatchSize> sizes) {
  if (impl_->device.kind == DeviceKind::cpu) return;
  for (const BatchSize& size : sizes) impl_->grow(size, /*documents=*/size.range ? 1 : size.tokens);
  impl_->upload.forget_tables();
}

Transformer::ReservedBytes Transformer::reserved_bytes(std::span<const BatchSize> sizes) {
  CountLargest count;
  ReservedBytes bytes;
  for (const BatchSize& size : sizes) {
    impl_->all_buffers(size, /*documents=*/size.range ? 1 : size.tokens, count);
    bytes.scratch = std::max(bytes.scratch, impl_->scratch_bytes(size.tokens));
    if (!size.range) continue;
    bytes.host = std::max(bytes.host, impl_->config.layers * size.range->begin() * impl_->kv_width() *
                                          element_bytes(impl_->options.arithmetic));
  }
  bytes.buffers = count.device_bytes();
  bytes.host += count.host_bytes();
  return bytes;
}

LossSum Transformer::loss(const PackedBatch& batch, const ParameterPointers& parameters, PassObserver& observer,
                          RangeExchange* exchange) {
  Impl& model = *impl_;
  const DeviceBatch device_batch = model.begin(batch, observer);
  const PassContext pass = model.context(device_batch, observer, exchange);
  model.forward(pass, Forward::alone, parameters, observer);
  const double nats =
      model.head.loss(pass, model.in_pass(model.head_index(), parameters), model.output_weight(parameters));
  return {nats, count_targets(batch)};
}

LossSum Transformer::gradient(const PackedBatch& batch, const ParameterPointers& parameters,
                              const GradientPointers& gradients, PassObserver& observer, RangeExchange* exchange) {
  Impl& model = *impl_;
  const DeviceBatch device_batch = model.begin(batch, observer);
  const PassContext pass = model.context(device_batch, observer, exchange);
  const size_t head = model.head_index();
  model.forward(pass, Forward::before_backward, parameters, observer);
  observer.before_backward();  // the head's own forward and backward are one
  float* d_output = model.head.output_weight(gradients[head], gradients[kEmbedding]);
  const double nats = model.head.gradient(pass, model.in_pass(head, parameters), model.output_weight(parameters),
                                          model.d_residual.data(), gradients[head], d_output);
  observer.after_backward(static_cast<int64_t>(head));
  model.backward(pass, parameters, gradients, observer);
  return {nats, count_targets(batch)};
}

void Transformer::logits(const PackedBatch& batch, const ParameterPointers& parameters, std::vector<float>& logits) {
  Impl& model = *impl_;
  PassObserver nobody;
  const DeviceBatch device_batch = model.begin(batch, nobody);
  const PassContext pass = model.context(device_batch, nobody, /*exchange=*/nullptr);
  model.forward(pass, Forward::alone, parameters, nobody);
  logits.resize(static_cast<size_t>(device_batch.tokens * model.config.vocabulary));
  model.head.logits(pass, model.in_pass(model.head_index(), parameters), model.output_weight(parameters),
                    logits.data());
}

double Transformer::flop(int64_t length) const {
  const auto n = static_cast<double>(length);
  return sum(count_flop(impl_->config, impl_->layout)).of(n, n * n);
}

}  // namespace hat
