#pragma once
#include <vector>

#include "hat/model/transformer.hpp"
#include "pass.hpp"

namespace hat {

/// Checks packed batches and brings them to the device, with what follows from them: positions and rotation angles.
class BatchUpload {
 public:
  BatchUpload(const ModelConfig& config, const Device& device) : config_(config), device_(device) {}

  /// Throws Error when the batch contradicts itself, a token is outside the vocabulary, or (GPT-2) a document is longer
  /// than the learned positions.
  void check(const PackedBatch& batch) const;
  /// Of a batch that was checked: the longest document, or the end of the range.
  static int64_t longest_of(const PackedBatch& batch);

  /// At most what batches of `tokens` tokens, with documents (or ends of ranges) of up to `longest`, need.
  template <typename Visit>
  void buffers(int64_t tokens, int64_t longest, Visit& visit) {
    for (DeviceBuffer<int32_t>* buffer : {&inputs_, &targets_, &positions_, &offsets_}) visit(*buffer, tokens + 1);
    if (config_.family == ModelFamily::gpt2) return;
    const int64_t rows = longest > table_length_ ? table_length(longest) : table_length_;
    visit(cosine_, rows * (config_.width / config_.heads / 2));
    visit(sine_, rows * (config_.width / config_.heads / 2));
  }
  /// To be called when buffers were grown for other batches than the next one.
  void forget_tables() { table_length_ = 0; }

  /// The batch in device memory, valid until the next call. It was checked, and the buffers are large enough. A range
  /// must be the only document and remain in place as long as the result.
  DeviceBatch upload(const Operations& ops, const Stream& stream, const PackedBatch& batch);

 private:
  /// Rows of the tables of angles that are made when the longest document has `longest` tokens.
  int64_t table_length(int64_t longest) const;

  ModelConfig config_;
  Device device_;
  std::vector<int32_t> host_positions_;
  DeviceBuffer<int32_t> inputs_, targets_, positions_, offsets_;
  DeviceBuffer<float> cosine_, sine_;
  int64_t table_length_ = 0;  ///< rows of cosine_ and sine_ that are filled
};

}  // namespace hat
