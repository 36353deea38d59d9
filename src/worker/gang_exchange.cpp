#include "worker/gang_exchange.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace hat {

namespace {

constexpr int kForwardTag = 20'000;  // beyond those of rings (gradient_sender.cpp)
constexpr int kBackwardTag = 20'001;

int64_t attention_block(int64_t layer) { return 1 + 2 * layer; }

}  // namespace

GangExchange::GangExchange(const RunPlan& plan, const Communicator& workers, Waiting& waiting, Account& account)
    : plan_(plan),
      workers_(workers),
      waiting_(waiting),
      account_(account),
      width_(key_value_elements(plan.deck.model) / plan.deck.model.layers),
      charge_(exchange_charge(plan)),
      stored_(plan.compute.arithmetic),
      wire_(gang_wire(plan).forward),
      d_wire_(gang_wire(plan).backward) {
  const auto heads = static_cast<double>(plan.deck.model.heads);
  const auto kv = static_cast<double>(kv_heads(plan.deck.model));
  kv_share_ = kv / (heads + kv);  // of those of q, k, v and the output
  q_share_ = heads / (2 * (heads + kv));
}

void GangExchange::begin(const GangRange& range, const std::vector<int64_t>& workers, EmulatedDevice* device,
                         TraceRecorder* trace, int64_t step, int64_t unit) {
  range_ = range;
  members_ = workers;
  device_ = device;
  trace_ = trace;
  step_ = step;
  unit_ = unit;
  const auto layers = plan_.deck.model.layers;
  begun_layer_ = layers;
  layers_.clear();
  spare_.clear();  // of the gang before, whose messages had other sizes
  layers_.resize(static_cast<size_t>(layers));
  for (Layer& layer : layers_) {
    for (int64_t member = 0; member < range_.member; ++member) {
      layer.earlier.push_back(start_receive(member, range_.tokens_of(member), wire_, kForwardTag));
    }
  }
  for (const int64_t layer : {layers - 1, layers - 2}) start_backward(layer);
}

void GangExchange::start_backward(int64_t layer) {
  if (layer < 0) return;
  for (int64_t member = range_.member + 1; member < range_.members(); ++member) {
    layers_[static_cast<size_t>(layer)].later.push_back(start_receive(member, range_.tokens(), d_wire_, kBackwardTag));
  }
}

GangExchange::Buffer GangExchange::take(size_t bytes) {
  auto found = spare_.end();  // the smallest that is large enough
  for (auto spare = spare_.begin(); spare != spare_.end(); ++spare) {
    if (spare->capacity >= bytes && (found == spare_.end() || spare->capacity < found->capacity)) found = spare;
  }
  if (found == spare_.end()) return {.data = std::make_unique_for_overwrite<std::byte[]>(bytes), .capacity = bytes};
  Buffer buffer = std::move(*found);
  spare_.erase(found);
  return buffer;
}

void GangExchange::give_back(Buffer& buffer) {
  if (buffer.data) spare_.push_back(std::move(buffer));
  buffer = {};
}

std::shared_ptr<GangExchange::Buffer> GangExchange::shared(size_t bytes) {
  return std::make_shared<Buffer>(take(bytes));
}

GangExchange::Incoming GangExchange::start_receive(int64_t member, int64_t tokens, Element element, int tag) {
  Incoming incoming;
  incoming.count = tokens * width_;
  const auto bytes = static_cast<size_t>(incoming.count * element_bytes(element));
  incoming.data = take(bytes);
  const auto rank = static_cast<int>(members_[static_cast<size_t>(member)]);
  incoming.request = workers_.start_receive({incoming.data.data.get(), bytes}, rank, tag);
  return incoming;
}

void GangExchange::progress() {
  const MpiScope mpi(account_);
  advance();
}

void GangExchange::advance() {
  if (sending_.empty()) {  // any call lets all messages go on
    for (Layer& layer : layers_) {
      for (Incoming& incoming : layer.earlier) {
        if (incoming.is_here) continue;
        incoming.request.test();
        return;
      }
    }
  }
  for (auto outgoing = sending_.begin(); outgoing != sending_.end();) {
    if (!outgoing->request.test()) {
      ++outgoing;
      continue;
    }
    if (trace_ != nullptr) {
      outgoing->event.end_s = now_s();
      trace_->add(outgoing->event);
    }
    if (outgoing->data.use_count() == 1) give_back(*outgoing->data);
    outgoing = sending_.erase(outgoing);
  }
}

void GangExchange::send(std::shared_ptr<Buffer> data, size_t bytes, int64_t layer, int64_t member, int tag) {
  const MpiScope mpi(account_);
  const auto rank = static_cast<int>(members_[static_cast<size_t>(member)]);
  const std::span<const std::byte> message(data->data.get(), bytes);
  sending_.push_back({.data = std::move(data),
                      .request = workers_.start_transfer(message, rank, tag, charge_),
                      .event = {.kind = TraceKind::exchange,
                                .begin_s = now_s(),
                                .step = step_,
                                .unit = unit_,
                                .block = static_cast<int32_t>(attention_block(layer)),
                                .part = static_cast<int32_t>(range_.member)}});
  sent_bytes_ += static_cast<int64_t>(bytes);
}

void GangExchange::device_does(int64_t layer, double projections, double area, bool backward) {
  if (device_ == nullptr) return;
  device_->do_part(attention_block(layer), projections * static_cast<double>(range_.tokens()), area, backward);
}

void GangExchange::send_keys_values(int64_t layer, ConstValues keys_values) {
  device_does(layer, kv_share_, 0, /*backward=*/false);
  if (range_.member + 1 == range_.members()) return;
  const int64_t count = range_.tokens() * width_;
  const auto bytes = static_cast<size_t>(count * element_bytes(wire_));
  std::shared_ptr<Buffer> data = shared(bytes);
  copy_values(keys_values, count, wire_, data->data.get());
  // The last member has the most to do with it.
  for (int64_t member = range_.members() - 1; member > range_.member; --member) {
    send(data, bytes, layer, member, kForwardTag);
  }
}

void GangExchange::wait(Incoming& incoming, Element wire, int64_t layer, int64_t member, const char* what) {
  const int64_t worker = members_[static_cast<size_t>(member)];
  const double waited_before = account_.seconds()[static_cast<size_t>(Activity::wait_gang)];
  waiting_.until(
      Activity::wait_gang,
      fmt::format("{} of layer {} from worker {}, which computes a part of the same sequence", what, layer, worker),
      [&] { return incoming.request.test(); });
  const double waited_s = account_.seconds()[static_cast<size_t>(Activity::wait_gang)] - waited_before;
  const auto node_of = [this](int64_t w) { return plan_.node_of_worker[static_cast<size_t>(w)]; };
  const bool one_node = node_of(worker) == node_of(members_[static_cast<size_t>(range_.member)]);
  const LinkSpeed& link = one_node ? plan_.links.inside : plan_.links.between;
  const double bytes = charge_ * static_cast<double>(incoming.count * element_bytes(wire));
  account_.add_gang_transfer(std::min(waited_s, link.latency_s + bytes / link.bytes_per_s));
  incoming.is_here = true;
}

ConstValues GangExchange::wait_earlier(int64_t layer, int64_t member) {
  Incoming& incoming = layers_[static_cast<size_t>(layer)].earlier[static_cast<size_t>(member)];
  if (!incoming.is_here) {
    const auto own = static_cast<double>(range_.tokens());
    if (member + 1 == range_.member) {
      device_does(layer, q_share_, own * own, /*backward=*/false);
    } else {
      device_does(layer, 0, 2 * own * static_cast<double>(range_.tokens_of(member + 1)), /*backward=*/false);
    }
    wait(incoming, wire_, layer, member, "keys and values");
    unpack(incoming, wire_, stored_);
  }
  return {incoming.data.data.get(), stored_};
}

void GangExchange::send_gradients(int64_t layer, int64_t member, const float* d_keys_values) {
  const double output = begins_backward(layer) ? 1 - kv_share_ - q_share_ : 0;
  const auto other = static_cast<double>(range_.tokens_of(member));
  device_does(layer, output, 2 * other * static_cast<double>(range_.tokens()), /*backward=*/true);
  const int64_t count = range_.tokens_of(member) * width_;
  const auto bytes = static_cast<size_t>(count * element_bytes(d_wire_));
  std::shared_ptr<Buffer> data = shared(bytes);
  copy_values(d_keys_values, count, d_wire_, data->data.get());
  send(std::move(data), bytes, layer, member, kBackwardTag);
}

const float* GangExchange::wait_later(int64_t layer, int64_t member) {
  const auto place = static_cast<size_t>(member - range_.member - 1);
  Incoming& incoming = layers_[static_cast<size_t>(layer)].later[place];
  if (place == 0) {
    const double output = begins_backward(layer) ? 1 - kv_share_ - q_share_ : 0;
    const auto own = static_cast<double>(range_.tokens());
    device_does(layer, output + q_share_, own * own, /*backward=*/true);
  }
  wait(incoming, d_wire_, layer, member, "gradients of keys and values");
  unpack(incoming, d_wire_, Element::fp32);
  return reinterpret_cast<const float*>(incoming.data.data.get());
}

/// Whether this is the first that is done of the layer's backward pass.
bool GangExchange::begins_backward(int64_t layer) {
  if (begun_layer_ == layer) return false;
  begun_layer_ = layer;
  return true;
}

void GangExchange::unpack(Incoming& incoming, Element wire, Element stored) {
  if (wire == stored) return;
  Buffer values = take(static_cast<size_t>(incoming.count * element_bytes(stored)));
  copy_values({static_cast<const void*>(incoming.data.data.get()), wire}, incoming.count, stored, values.data.get());
  give_back(incoming.data);
  incoming.data = std::move(values);
}

void GangExchange::release(int64_t layer) {
  Layer& done = layers_[static_cast<size_t>(layer)];
  for (std::vector<Incoming>* all : {&done.earlier, &done.later}) {
    for (Incoming& incoming : *all) give_back(incoming.data);
    all->clear();
  }
  start_backward(layer - 2);
}

}  // namespace hat
