#pragma once
#include <algorithm>
#include <cstddef>

#include "hat/core/gang_range.hpp"
#include "hat/device/device_buffer.hpp"
#include "hat/model/transformer.hpp"
#include "pass.hpp"

namespace hat {

/// An exchange whose arrays lie in the memory of a device, on top of one that knows only the host's: all goes through
/// memory of the host. What wait_earlier and wait_later return holds until the next call of the same function; it is
/// for the stream, which gets there after it has come.
class StagedExchange final : public RangeExchange {
 public:
  /// `stored`: as the model keeps keys and values.
  StagedExchange(const Stream& stream, Element stored) : stream_(stream), stored_(stored), earlier_(stored) {}

  template <typename Visit>
  void buffers(const GangRange& range, int64_t width, Visit& visit) {
    const int64_t longest = longest_before(range);
    visit(earlier_, longest * width);
    if (range.member + 1 < range.members()) visit(later_, range.tokens() * width);
    visit(leaving_,
          width * std::max(range.tokens() * element_bytes(stored_), longest * static_cast<int64_t>(sizeof(float))));
  }

  /// A pass of this range begins. `width`: numbers of a token's keys and values, 2 K D. All but the stream and the
  /// range must live as long as the pass.
  void begin(RangeExchange& host, PassObserver& observer, const GangRange& range, int64_t width);

  void send_keys_values(int64_t layer, ConstValues keys_values) override;
  ConstValues wait_earlier(int64_t layer, int64_t member) override;
  void send_gradients(int64_t layer, int64_t member, const float* d_keys_values) override;
  const float* wait_later(int64_t layer, int64_t member) override;
  void progress() override { host_->progress(); }
  void release(int64_t layer) override;

 private:
  static int64_t longest_before(const GangRange& range) {
    int64_t longest = 0;
    for (int64_t member = 0; member < range.member; ++member) longest = std::max(longest, range.tokens_of(member));
    return longest;
  }
  /// `bytes` of the device, in memory of the host, valid until the next call.
  const std::byte* on_host(const void* data, int64_t bytes);

  Stream stream_;
  Element stored_;
  RangeExchange* host_ = nullptr;
  PassObserver* observer_ = nullptr;
  GangRange range_;
  int64_t width_ = 0;
  PinnedBuffer<std::byte> leaving_;
  ValuesBuffer earlier_;
  DeviceBuffer<float> later_;
};

}  // namespace hat
