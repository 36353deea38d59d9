#pragma once
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "hat/comm/mailbox.hpp"

namespace hat {

/// Receives the bodies of pushes behind their headers without blocking, those of one worker in the order of sending,
/// and drops repeats: a push counts once by (worker, lease generation, sequence number), however often it is sent.
class PushReceiver {
 public:
  /// A push, and how many seconds passed between its header and the end of its body.
  using Accept = std::function<void(const PushHeader&, std::span<const float>, double travel_s)>;

  PushReceiver(const Communicator& communicator, Accept accept);

  /// A header has come; its body follows from the same rank.
  void expect(PushHeader header, int source_rank);
  /// Hands over the bodies that have arrived. True if there were any.
  bool progress();

  int64_t repeats_dropped() const { return repeats_dropped_; }

 private:
  struct Pending {
    PushHeader header;
    std::vector<float> body;
    Request request;
    double begin_s;
  };
  bool is_repeat(const PushHeader& header);

  const Communicator* communicator_;
  Accept accept_;
  std::deque<Pending> pending_;
  std::vector<std::vector<float>> spare_bodies_;  // kept, so that memory is touched for the first time only once
  std::map<int64_t, std::pair<int64_t, int64_t>> newest_;  // worker -> (generation, sequence number) taken last
  int64_t repeats_dropped_ = 0;
};

}  // namespace hat
