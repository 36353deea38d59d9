#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/core/packed_batch.hpp"
#include "hat/model/batch_size.hpp"
#include "hat/model/compute_options.hpp"
#include "hat/model/layout.hpp"
#include "hat/model/range_exchange.hpp"

namespace hat {

struct LossSum {
  double nats = 0.0;   ///< sum over target tokens, never a mean
  int64_t tokens = 0;  ///< number of target tokens
};

/// Where in the device's memory the parameters of each block are at this moment: one pointer per block of the layout,
/// in its order. The pointers may change between passes (double buffering), never inside one.
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
  /// `gradients[block]` holds its final value of this pass once the stream has come so far. Descending order; a tied
  /// head finishes with "embedding".
  virtual void after_backward(int64_t /*block*/) {}
  /// The pass goes on when all that was put into the stream has ended: here a worker does other things meanwhile.
  virtual void wait_for(const Stream& stream) { stream.synchronize(); }
  /// Memory of an accelerator is about to be allocated for this pass: that waits for all that the device does, so
  /// nothing that others must do something for may be under way there on return. Not after `reserve` of such a batch.
  virtual void before_growth() {}
};

/// A decoder transformer, forward and backward by hand, on variable-length packed batches.
/// One object per worker; owns the activations (buffers grow to the largest batch seen or reserved, then stay). Not
/// thread safe.
///
/// A layer is done for all rows before the next one begins, so each block's parameters are needed once in a pass and
/// its gradient is final once. Inside a block rows are taken in chunks: the projections and the MLP of a long document
/// go chunk by chunk, its attention tile by tile with the keys and values of all earlier tiles at hand, backward in
/// reverse; several short documents share a chunk.
class Transformer {
 public:
  /// `config.vocabulary` must be set. Throws InputError on impossible sizes. What is computed for a document does not
  /// depend on the documents that share its batch.
  /// Computes on device 0 of the kind that `options` names, or in the order of a stream that is given.
  explicit Transformer(const ModelConfig& config, const ComputeOptions& options = {});
  Transformer(const ModelConfig& config, const ComputeOptions& options, const Stream& stream);
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;

  const ModelLayout& layout() const;
  const ModelConfig& config() const;
  const ComputeOptions& options() const;

  /// About the bytes of its buffers once it has seen a batch of `tokens` tokens whose longest document has `longest`.
  int64_t buffer_bytes(int64_t tokens, int64_t longest);
  /// The same for a range of a sequence, and with it the keys and values of all earlier ranges and layers, which a
  /// RangeExchange keeps from the forward to the backward pass whatever is recomputed. All but those and the tables of
  /// angles follows the tokens of the range, not of the sequence.
  int64_t buffer_bytes(const GangRange& range);

  /// Makes all buffers for batches of up to these sizes now; no pass may be under way. On the CPU nothing: memory is
  /// taken there when it is written to.
  void reserve(std::span<const BatchSize> sizes);
  /// What that takes, and as much of the host beside, with what a RangeExchange keeps there.
  struct ReservedBytes {
    int64_t buffers = 0;  ///< of the device
    int64_t scratch = 0;  ///< of the device: what the stream keeps for operations
    int64_t host = 0;
  };
  /// The stream may be one of the CPU, if options name the device and its operations: nothing is allocated.
  ReservedBytes reserved_bytes(std::span<const BatchSize> sizes);

  /// Loss alone. `observer` gets before_forward only. A range of a document needs `exchange`, whole ones must have
  /// none; the losses of all members' ranges add up to that of the whole document.
  LossSum loss(const PackedBatch& batch, const ParameterPointers& parameters, PassObserver& observer,
               RangeExchange* exchange = nullptr);

  /// Loss, and *adds* d(sum of nats)/d(parameter) to `gradients`, which also add up over the members of a gang.
  /// `parameters` is read through the reference at each use, so that before_forward may still change a pointer.
  LossSum gradient(const PackedBatch& batch, const ParameterPointers& parameters, const GradientPointers& gradients,
                   PassObserver& observer, RangeExchange* exchange = nullptr);

  /// Logits of every position, (T, V) row-major, into `logits` of the host. For generation and tests; whole documents
  /// only.
  void logits(const PackedBatch& batch, const ParameterPointers& parameters, std::vector<float>& logits);

  /// FLOP of forward and backward of one document of `length` tokens (flop_count.hpp).
  double flop(int64_t length) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hat
