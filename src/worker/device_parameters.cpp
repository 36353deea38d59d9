#include "worker/device_parameters.hpp"

namespace hat {

DeviceParameters::DeviceParameters(const RunPlan& plan, const Stream& compute, std::span<std::byte> host)
    : plan_(plan), compute_(compute), pull_(compute.device(), "pull"), host_(compute.device(), host) {
  if (compute.device().kind == DeviceKind::cpu) return;
  blocks_.resize(plan.layout.blocks.size());
  for (size_t block = 0; block < blocks_.size(); ++block) {
    for (Copy& copy : blocks_[block].copies) {
      copy.values = DeviceBuffer<float>(compute.device(), plan.layout.blocks[block].size);
    }
  }
}

bool DeviceParameters::copy(int64_t block, const float* host, int64_t version, bool predicted) {
  Block& own = blocks_[static_cast<size_t>(block)];
  for (const Copy& copy : own.copies) {
    if (copy.version == version && copy.predicted == predicted) return false;
  }
  Copy& target = own.other();
  const int64_t size = plan_.layout.blocks[static_cast<size_t>(block)].size;
  copy_to_device(pull_, host, target.values.data(), size);
  target.is_here = pull_.record();
  target.version = version;
  target.predicted = predicted;
  return true;
}

void DeviceParameters::bring_ahead(int64_t block, const float* host, int64_t version, bool predicted) {
  if (!copy(block, host, version, predicted)) return;
  Block& own = blocks_[static_cast<size_t>(block)];
  own.ahead = own.other().is_here;
}

const float* DeviceParameters::bring(int64_t block, const float* host, int64_t version, bool predicted) {
  if (on_host()) return host;
  copy(block, host, version, predicted);
  Block& own = blocks_[static_cast<size_t>(block)];
  const Copy& other = own.other();
  if (other.version == version && other.predicted == predicted) own.current = 1 - own.current;
  compute_.wait_for(own.copies[own.current].is_here);
  return own.copies[own.current].values.data();
}

void DeviceParameters::free_device() {
  pull_.synchronize();
  blocks_.clear();
  host_ = {};
  compute_ = pull_ = Stream(Device{});
}

void DeviceParameters::wait(int64_t block) {
  if (!on_host()) blocks_[static_cast<size_t>(block)].ahead.wait();
}

}  // namespace hat
