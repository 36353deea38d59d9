#include "commands/loaded_model.hpp"

namespace hat {

LoadedModel::LoadedModel(const std::filesystem::path& path, int threads, DeviceKind device)
    : reader_(path),
      transformer_(reader_.state().model, {.threads = threads, .recompute = Recompute::full, .device = device}) {
  const Stream stream(transformer_.options().device_at(0));
  for (const std::vector<float>& values : read_parameters(reader_, transformer_.layout())) {
    blocks_.emplace_back(stream.device(), static_cast<int64_t>(values.size()));
    copy_to_device(stream, values.data(), blocks_.back().data(), blocks_.back().size());
    stream.synchronize();
  }
  for (DeviceBuffer<float>& block : blocks_) pointers_.push_back(block.data());
}

}  // namespace hat
