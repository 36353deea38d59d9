#include "hat/model/memory_exchange.hpp"

#include <exception>
#include <string_view>
#include <thread>

#include "hat/core/error.hpp"
#include "hat/model/layout.hpp"

namespace hat {

namespace {
constexpr const char* kKeysValues = "keys and values";
constexpr const char* kGradients = "gradients";
}  // namespace

void GangMemory::put(const Key& key, std::vector<std::byte> data) {
  const std::lock_guard lock(mutex_);
  if (!sent_.emplace(key, std::move(data)).second) {
    throw Error(fmt::format("{} of layer {} were sent twice", key.what, key.layer));
  }
  changed_.notify_all();
}

std::vector<std::byte> GangMemory::wait(const Key& key) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || sent_.contains(key); });
  if (failed_) throw Error("another member of the gang has failed");
  return sent_.at(key);
}

void GangMemory::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

MemoryExchange::MemoryExchange(GangMemory& memory, const GangRange& range, const ModelConfig& config, Element stored,
                               GangWire wire)
    : memory_(memory),
      range_(range),
      width_(2 * kv_heads(config) * (config.width / config.heads)),
      stored_(stored),
      wire_(wire) {}

void MemoryExchange::put(const GangMemory::Key& key, ConstValues values, int64_t tokens, Element wire) {
  std::vector<std::byte> data(static_cast<size_t>(tokens * width_ * element_bytes(wire)));
  copy_values(values, tokens * width_, wire, data.data());
  memory_.put(key, std::move(data));
}

std::vector<std::byte> MemoryExchange::take(const GangMemory::Key& key, int64_t tokens, Element wire, Element element) {
  std::vector<std::byte> came = memory_.wait(key);
  if (wire == element) return came;
  std::vector<std::byte> values(static_cast<size_t>(tokens * width_ * element_bytes(element)));
  copy_values({static_cast<const void*>(came.data()), wire}, tokens * width_, element, values.data());
  return values;
}

void MemoryExchange::send_keys_values(int64_t layer, ConstValues keys_values) {
  if (keys_values.element() != stored_) throw Error("keys and values are not in the element that was named");
  put({kKeysValues, layer, range_.member, 0}, keys_values, range_.tokens(), wire_.forward);
}

ConstValues MemoryExchange::wait_earlier(int64_t layer, int64_t member) {
  auto [at, is_new] = held_.try_emplace({layer, member});
  if (is_new) at->second = take({kKeysValues, layer, member, 0}, range_.tokens_of(member), wire_.forward, stored_);
  return {static_cast<const void*>(at->second.data()), stored_};
}

void MemoryExchange::send_gradients(int64_t layer, int64_t member, const float* d_keys_values) {
  put({kGradients, layer, range_.member, member}, d_keys_values, range_.tokens_of(member), wire_.backward);
}

const float* MemoryExchange::wait_later(int64_t layer, int64_t member) {
  auto& held = held_[{layer, member}];
  held = take({kGradients, layer, member, range_.member}, range_.tokens(), wire_.backward, Element::fp32);
  return reinterpret_cast<const float*>(held.data());
}

void MemoryExchange::release(int64_t layer) {
  std::erase_if(held_, [&](const auto& entry) { return entry.first.first == layer; });
}

void run_gang(const std::vector<int64_t>& bounds, const ModelConfig& config, Element stored, GangWire wire,
              const std::function<void(const GangRange&, MemoryExchange&)>& work) {
  GangMemory memory;
  std::mutex mutex;
  std::exception_ptr first;
  const auto fail = [&] {
    {
      const std::lock_guard lock(mutex);
      if (first == nullptr) first = std::current_exception();
    }
    memory.fail();
  };
  {
    std::vector<std::jthread> threads;  // joined here, whatever happens
    try {
      for (int64_t member = 0; member + 1 < std::ssize(bounds); ++member) {
        threads.emplace_back([&, member] {
          try {
            const GangRange range{.bounds = bounds, .member = member};
            MemoryExchange exchange(memory, range, config, stored, wire);
            work(range, exchange);
          } catch (...) {
            fail();
          }
        });
      }
    } catch (...) {  // one that cannot be started: the others would wait for it
      fail();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace hat
