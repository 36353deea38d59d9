#pragma once
#include <vector>

#include "hat/model/transformer.hpp"
#include "pass.hpp"

namespace hat {

/// Checks packed batches and brings them to the device, with what follows from them: positions and rotation angles.
class BatchUpload {
 public:
  BatchUpload(const ModelConfig& config, const Device& device) : config_(config), device_(device) {}

  /// The batch in device memory, valid until the next call. Throws Error when the batch contradicts itself, a token is
  /// outside the vocabulary, or (GPT-2) a document is longer than the learned positions.
  DeviceBatch upload(const Operations& ops, const Stream& stream, const PackedBatch& batch);

 private:
  ModelConfig config_;
  Device device_;
  std::vector<int32_t> host_positions_;
  DeviceBuffer<int32_t> inputs_, targets_, positions_, offsets_;
  DeviceBuffer<float> cosine_, sine_;
  int64_t table_length_ = 0;  ///< rows of cosine_ and sine_ that are filled
};

}  // namespace hat
