#include "staged_exchange.hpp"

namespace hat {

void StagedExchange::begin(RangeExchange& host, PassObserver& observer, const GangRange& range, int64_t width) {
  host_ = &host;
  observer_ = &observer;
  range_ = range;
  width_ = width;
  GrowBuffers grow{stream_.device()};
  buffers(range, width, grow);
}

const std::byte* StagedExchange::on_host(const void* data, int64_t bytes) {
  copy_to_host(stream_, static_cast<const std::byte*>(data), leaving_.data(), bytes);
  observer_->wait_for(stream_);
  return leaving_.data();
}

void StagedExchange::send_keys_values(int64_t layer, ConstValues keys_values) {
  const void* host = on_host(keys_values.data(), range_.tokens() * width_ * element_bytes(keys_values.element()));
  host_->send_keys_values(layer, {host, keys_values.element()});
}

ConstValues StagedExchange::wait_earlier(int64_t layer, int64_t member) {
  const ConstValues host = host_->wait_earlier(layer, member);
  const int64_t bytes = range_.tokens_of(member) * width_ * element_bytes(stored_);
  copy_to_device(stream_, static_cast<const std::byte*>(host.data()), static_cast<std::byte*>(earlier_.data().data()),
                 bytes);
  return earlier_.data();
}

void StagedExchange::send_gradients(int64_t layer, int64_t member, const float* d_keys_values) {
  const int64_t bytes = range_.tokens_of(member) * width_ * static_cast<int64_t>(sizeof(float));
  host_->send_gradients(layer, member, reinterpret_cast<const float*>(on_host(d_keys_values, bytes)));
}

const float* StagedExchange::wait_later(int64_t layer, int64_t member) {
  copy_to_device(stream_, host_->wait_later(layer, member), later_.data(), range_.tokens() * width_);
  return later_.data();
}

// The host's arrays must stay until they have been copied.
void StagedExchange::release(int64_t layer) {
  observer_->wait_for(stream_);
  host_->release(layer);
}

}  // namespace hat
