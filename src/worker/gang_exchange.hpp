#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/core/gang_range.hpp"
#include "hat/gradient/run_plan.hpp"
#include "hat/metrics/trace.hpp"
#include "hat/model/charged_cost.hpp"
#include "hat/model/range_exchange.hpp"
#include "worker/emulated_device.hpp"
#include "worker/waiting.hpp"

namespace hat {

/// What the members of a gang send each other, over the workers' communicator: keys and values to all later members,
/// their gradients back, in the wire format of the deck. Messages between two members have one tag for each direction
/// and come in the order of layers, so all receives of the forward pass are posted when a unit begins; those of the
/// backward pass two layers ahead. What has left is copied first, so nobody waits for a slow receiver.
///
/// With an emulated device, the parts of a block before something leaves or is waited for take the device's time first.
class GangExchange final : public RangeExchange {
 public:
  GangExchange(const RunPlan& plan, const Communicator& workers, Waiting& waiting, Account& account);

  /// A unit of this range begins; `workers`: of the members. The exchange is then good for one pass.
  void begin(const GangRange& range, const std::vector<int64_t>& workers, EmulatedDevice* device, TraceRecorder* trace,
             int64_t step, int64_t unit);
  /// Lets messages leave and come.
  void advance();
  /// The same inside a pass.
  void progress() override;
  /// Everything has left.
  bool is_idle() const { return sending_.empty(); }
  int64_t sent_bytes() const { return sent_bytes_; }

  void send_keys_values(int64_t layer, ConstValues keys_values) override;
  ConstValues wait_earlier(int64_t layer, int64_t member) override;
  void send_gradients(int64_t layer, int64_t member, const float* d_keys_values) override;
  const float* wait_later(int64_t layer, int64_t member) override;
  void release(int64_t layer) override;

 private:
  /// Memory that is used again, never cleared.
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t capacity = 0;
  };
  struct Incoming {
    Buffer data;  // as it came, then in the model's format
    int64_t count = 0;
    Request request;
    bool is_here = false;
  };
  struct Outgoing {
    std::shared_ptr<Buffer> data;
    Request request;
    TraceEvent event;
  };
  struct Layer {
    std::vector<Incoming> earlier;  // by member
    std::vector<Incoming> later;    // by members behind the own one
  };

  Buffer take(size_t bytes);
  void give_back(Buffer& buffer);
  Incoming start_receive(int64_t member, int64_t tokens, Element element, int tag);
  void start_backward(int64_t layer);
  void wait(Incoming& incoming, Element wire, int64_t layer, int64_t member, const char* what);
  void unpack(Incoming& incoming, Element wire, Element stored);
  bool begins_backward(int64_t layer);
  void send(std::shared_ptr<Buffer> data, size_t bytes, int64_t layer, int64_t member, int tag);
  void device_does(int64_t layer, double projections, double area, bool backward);
  std::shared_ptr<Buffer> shared(size_t bytes);

  const RunPlan& plan_;
  const Communicator& workers_;
  Waiting& waiting_;
  Account& account_;
  int64_t width_;    // numbers of a token's keys and values in a layer
  double charge_;    // bytes that an emulated network counts for one
  Element stored_;   // keys and values, by the model
  Element wire_;     // the same, on their way
  Element d_wire_;   // gradients, on their way
  double kv_share_;  // of a layer's projections: those that make keys and values
  double q_share_;   // those that make queries

  GangRange range_;
  std::vector<int64_t> members_;
  EmulatedDevice* device_ = nullptr;
  TraceRecorder* trace_ = nullptr;
  int64_t step_ = 0;
  int64_t unit_ = 0;
  int64_t begun_layer_ = 0;  // whose output projection's backward pass the device has done
  std::vector<Layer> layers_;
  std::deque<Outgoing> sending_;
  std::vector<Buffer> spare_;
  int64_t sent_bytes_ = 0;
};

}  // namespace hat
