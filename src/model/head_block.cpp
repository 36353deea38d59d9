#include "head_block.hpp"

#include <algorithm>

namespace hat {

namespace {

// A piece's logits take about this many elements (128 MiB), more only where kFewestRows rows do: enough rows that
// adding to the gradient of the output matrix, once per piece, costs little beside the products.
constexpr int64_t kMostLogits = int64_t{1} << 25;
constexpr int64_t kFewestRows = 256;
constexpr int64_t kMostRows = 2048;

}  // namespace

HeadBlock::HeadBlock(const ModelConfig& config, const BlockSpec& block)
    : width_(config.width),
      vocabulary_(config.vocabulary),
      logits_stride_((config.vocabulary + 15) / 16 * 16),
      rows_(std::clamp(kMostLogits / logits_stride_, kFewestRows, kMostRows)),
      tied_(config.tied),
      norm_(config, block) {
  if (!tied_) output_weight_ = tensor_offset(block, "output.weight");
}

ConstValues HeadBlock::output_weight(const BlockParameters& head, const BlockParameters& embedding) const {
  return tied_ ? embedding.weight(0, width_) : head.weight(output_weight_, width_);
}

float* HeadBlock::output_weight(float* head, float* embedding) const {
  return tied_ ? embedding : head + output_weight_;
}

template <typename Work>
void HeadBlock::for_each_piece(const PassContext& pass, const BlockParameters& parameters, ConstValues output,
                               const Work& work) {
  for (int64_t begin = 0; begin < pass.batch.tokens; begin += rows_) {
    const Chunk piece{begin, std::min(rows_, pass.batch.tokens - begin)};
    norm_.forward(pass, piece, parameters.values, input_.data() + begin * width_, normed_.data());
    pass.ops.gemm(pass.stream, pass.arithmetic, Transpose::no, Transpose::yes, piece.rows, vocabulary_, width_, 1.0f,
                  normed_.data(), width_, output, width_, 0.0f, logits_.data(), logits_stride_);
    work(piece);
  }
}

double HeadBlock::sum_nats(const PassContext& pass) {
  const int64_t T = pass.batch.tokens;
  copy_to_host(pass.stream, row_nats_.data(), host_nats_.data(), T);
  pass.wait();
  double sum = 0.0;
  for (const double value : host_nats_.span().first(static_cast<size_t>(T))) sum += value;
  return sum;
}

double HeadBlock::loss(const PassContext& pass, const BlockParameters& parameters, ConstValues output) {
  for_each_piece(pass, parameters, output, [&](Chunk piece) {
    pass.ops.cross_entropy(pass.stream, CrossEntropyOutput::loss, piece.rows, vocabulary_, logits_stride_,
                           pass.batch.targets + piece.begin, logits_.data(), row_nats_.data() + piece.begin);
  });
  return sum_nats(pass);
}

double HeadBlock::gradient(const PassContext& pass, const BlockParameters& parameters, ConstValues output,
                           float* d_residual, float* gradients, float* d_output) {
  const int64_t C = width_;
  const int64_t V = vocabulary_;
  for_each_piece(pass, parameters, output, [&](Chunk piece) {
    pass.ops.cross_entropy(pass.stream, CrossEntropyOutput::loss_and_gradient, piece.rows, V, logits_stride_,
                           pass.batch.targets + piece.begin, logits_.data(), row_nats_.data() + piece.begin);
    const float* d_logits = logits_.data();
    pass.ops.gemm(pass.stream, pass.arithmetic, Transpose::yes, Transpose::no, V, C, piece.rows, 1.0f, d_logits,
                  logits_stride_, normed_.data(), C, 1.0f, d_output, C);
    pass.ops.gemm(pass.stream, pass.arithmetic, Transpose::no, Transpose::no, piece.rows, C, V, 1.0f, d_logits,
                  logits_stride_, output, C, 0.0f, d_normed_.data(), C);
    float* dx = d_residual + piece.begin * C;
    pass.ops.fill(pass.stream, piece.rows * C, 0.0f, dx);
    norm_.backward(pass, piece, parameters.values, input_.data() + piece.begin * C, d_normed_.data(), dx, gradients);
  });
  return sum_nats(pass);
}

void HeadBlock::logits(const PassContext& pass, const BlockParameters& parameters, ConstValues output, float* logits) {
  for_each_piece(pass, parameters, output, [&](Chunk piece) {
    for (int64_t row = 0; row < piece.rows; ++row) {
      copy_to_host(pass.stream, logits_.data() + row * logits_stride_, logits + (piece.begin + row) * vocabulary_,
                   vocabulary_);
    }
    pass.stream.synchronize();
  });
}

}  // namespace hat
