#pragma once
#include <filesystem>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/model/transformer.hpp"

namespace hat {

/// A model with the parameters of a checkpoint, in one process.
class LoadedModel {
 public:
  /// `path`: a run folder (its newest checkpoint), a checkpoint folder or its checkpoint.h5. Throws InputError.
  /// On device 0 of its kind.
  LoadedModel(const std::filesystem::path& path, int threads, DeviceKind device);

  Transformer& transformer() { return transformer_; }
  const ParameterPointers& parameters() const { return pointers_; }
  const CheckpointReader& checkpoint() const { return reader_; }

 private:
  CheckpointReader reader_;
  Transformer transformer_;
  std::vector<DeviceBuffer<float>> blocks_;
  ParameterPointers pointers_;
};

}  // namespace hat
