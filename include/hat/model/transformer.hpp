#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/core/packed_batch.hpp"
#include "hat/kernels/operations.hpp"
#include "hat/model/layout.hpp"

namespace hat {

struct LossSum {
  double nats = 0.0;   ///< sum over target tokens, never a mean
  int64_t tokens = 0;  ///< number of target tokens
};

/// Where the parameters of each block are at this moment: one pointer per block of the layout, in its order. The
/// pointers may change between passes (double buffering), never inside one.
using ParameterPointers = std::vector<const float*>;
using GradientPointers = std::vector<float*>;

/// Told where a pass has got to. Called on the thread that computes; may block (that is how a worker waits for a pull).
class PassObserver {
 public:
  virtual ~PassObserver() = default;
  /// Block `block` is about to be used for the first time in this pass: `parameters[block]` must be valid on return.
  virtual void before_forward(int64_t /*block*/) {}
  /// All blocks have been through their forward; the backward pass starts.
  virtual void before_backward() {}
  /// `gradients[block]` holds its final value of this pass. Descending order; a tied head finishes with "embedding".
  virtual void after_backward(int64_t /*block*/) {}
};

/// A decoder transformer, forward and backward by hand, on variable-length packed batches. fp32.
/// One object per worker; owns the activations (buffers grow to the largest batch seen, then stay). Not thread safe.
class Transformer {
 public:
  /// `config.vocabulary` must be set. Throws InputError on impossible sizes. `threads`: how many threads its kernels
  /// use; what it computes does not depend on the documents that share a batch. `ops` must outlive the model.
  explicit Transformer(const ModelConfig& config, int threads = 1, const Operations& ops = operations(DeviceKind::cpu));
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;

  const ModelLayout& layout() const;
  const ModelConfig& config() const;

  /// Loss alone. `observer` gets before_forward only.
  LossSum loss(const PackedBatch& batch, const ParameterPointers& parameters, PassObserver& observer);

  /// Loss, and *adds* d(sum of nats)/d(parameter) to `gradients`.
  /// `parameters` is read through the reference at each use, so that before_forward may still change a pointer.
  LossSum gradient(const PackedBatch& batch, const ParameterPointers& parameters, const GradientPointers& gradients,
                   PassObserver& observer);

  /// Logits of every position, (T, V) row-major, into `logits`. For generation and tests.
  void logits(const PackedBatch& batch, const ParameterPointers& parameters, std::vector<float>& logits);

  /// FLOP of forward and backward of one document of `length` tokens: 6 N per token (N without position embeddings,
  /// embedding look-up not counted unless tied) plus 6 n^2 width per layer.
  double flop(int64_t length) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
