#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "hat/model/range_exchange.hpp"
#include "model_support.hpp"

/// A gang in one process: each member is a thread with a model of its own, and what they exchange goes through memory.
namespace hat::test {

/// What the members of a gang have sent each other in a pass. Waits end with an exception, so that no test hangs.
class GangMemory {
 public:
  using Key = std::tuple<std::string, int64_t, int64_t, int64_t>;  // what, layer, from, to

  void put(const Key& key, const void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte> copy(bytes);
    std::memcpy(copy.data(), data, bytes);
    if (!sent_.emplace(key, std::move(copy)).second) throw std::logic_error(std::get<0>(key) + " sent twice");
    changed_.notify_all();
  }
  /// A copy, so that each member reads memory of its own.
  std::vector<std::byte> wait(const Key& key) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return failed_ || sent_.contains(key); });
    if (failed_) throw std::runtime_error("another member failed");
    if (!came) throw std::runtime_error("waited too long for " + std::get<0>(key));
    return sent_.at(key);
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::vector<std::byte>> sent_;
  bool failed_ = false;
};

/// One member's side. Memory that it handed out is freed by release, so that a later use shows (AddressSanitizer).
class MemoryExchange : public RangeExchange {
 public:
  MemoryExchange(GangMemory& memory, const GangRange& range, const ModelConfig& config, Element stored)
      : memory_(memory),
        range_(range),
        width_(2 * kv_heads(config) * (config.width / config.heads)),
        element_(stored) {}

  void send_keys_values(int64_t layer, ConstValues keys_values) override {
    if (keys_values.element() != element_) throw std::logic_error("published in another element");
    memory_.put({"keys and values", layer, range_.member, 0}, keys_values.data(),
                static_cast<size_t>(range_.tokens() * width_ * element_bytes(element_)));
  }
  ConstValues wait_earlier(int64_t layer, int64_t member) override {
    auto [at, is_new] = held_.try_emplace({layer, member});
    if (is_new) at->second = memory_.wait({"keys and values", layer, member, 0});
    return {at->second.data(), element_};
  }
  void send_gradients(int64_t layer, int64_t member, const float* d_keys_values) override {
    memory_.put({"gradient", layer, range_.member, member}, d_keys_values,
                static_cast<size_t>(range_.tokens_of(member) * width_) * sizeof(float));
  }
  const float* wait_later(int64_t layer, int64_t member) override {
    auto& held = held_[{layer, member}] = memory_.wait({"gradient", layer, member, range_.member});
    return reinterpret_cast<const float*>(held.data());
  }
  void release(int64_t layer) override {
    std::erase_if(held_, [&](const auto& entry) { return entry.first.first == layer; });
  }
  bool holds_nothing() const { return held_.empty(); }

 private:
  GangMemory& memory_;
  GangRange range_;
  int64_t width_;  ///< 2 K D
  Element element_;
  std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> held_;  // (layer, member)
};

/// The part of a batch of one document that a member computes.
inline PackedBatch range_of(const PackedBatch& whole, const GangRange& range) {
  PackedBatch part;
  part.inputs.assign(whole.inputs.begin() + range.begin(), whole.inputs.begin() + range.end());
  part.targets.assign(whole.targets.begin() + range.begin(), whole.targets.begin() + range.end());
  part.offsets = {0, static_cast<int32_t>(range.tokens())};
  part.range = range;
  return part;
}

/// Calls work(member's range, its exchange) for all members at once; the first exception is thrown on.
inline void run_gang(const std::vector<int64_t>& bounds, const ModelConfig& config, Element stored,
                     const std::function<void(const GangRange&, MemoryExchange&)>& work) {
  GangMemory memory;
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t member = 0; member + 1 < std::ssize(bounds); ++member) {
    threads.emplace_back([&, member] {
      const GangRange range{.bounds = bounds, .member = member};
      MemoryExchange exchange(memory, range, config, stored);
      try {
        work(range, exchange);
        if (!exchange.holds_nothing()) throw std::logic_error("a layer was not released");
      } catch (...) {
        memory.fail();
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace hat::test
