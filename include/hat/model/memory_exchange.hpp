#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "hat/config/deck.hpp"
#include "hat/core/gang_range.hpp"
#include "hat/model/range_exchange.hpp"

namespace hat {

/// What the members of a gang in one process have sent each other in a pass; each member is a thread.
class GangMemory {
 public:
  struct Key {
    const char* what;
    int64_t layer = 0;
    int64_t from = 0;
    int64_t to = 0;
    bool operator<(const Key& other) const {
      return std::tuple(std::string_view(what), layer, from, to) <
             std::tuple(std::string_view(other.what), other.layer, other.from, other.to);
    }
  };

  void put(const Key& key, std::vector<std::byte> data);
  /// A copy, so that each member reads memory of its own. Throws Error when another member has failed.
  std::vector<std::byte> wait(const Key& key);
  void fail();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::vector<std::byte>> sent_;
  bool failed_ = false;
};

/// One member's side. Memory that it handed out is freed by `release`.
class MemoryExchange final : public RangeExchange {
 public:
  /// `stored`: as the model keeps keys and values. On their way they are what `wire` says, as between workers.
  MemoryExchange(GangMemory& memory, const GangRange& range, const ModelConfig& config, Element stored, GangWire wire);

  void send_keys_values(int64_t layer, ConstValues keys_values) override;
  ConstValues wait_earlier(int64_t layer, int64_t member) override;
  void send_gradients(int64_t layer, int64_t member, const float* d_keys_values) override;
  const float* wait_later(int64_t layer, int64_t member) override;
  void release(int64_t layer) override;
  bool holds_nothing() const { return held_.empty(); }

 private:
  void put(const GangMemory::Key& key, ConstValues values, int64_t tokens, Element wire);
  std::vector<std::byte> take(const GangMemory::Key& key, int64_t tokens, Element wire, Element element);

  GangMemory& memory_;
  GangRange range_;
  int64_t width_;  // 2 K D
  Element stored_;
  GangWire wire_;
  std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> held_;  // (layer, member)
};

/// Calls work(member's range, its exchange) for all members at once, each on a thread of its own; the first exception
/// is thrown on.
void run_gang(const std::vector<int64_t>& bounds, const ModelConfig& config, Element stored, GangWire wire,
              const std::function<void(const GangRange&, MemoryExchange&)>& work);

}  // namespace hat
