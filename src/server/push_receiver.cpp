#include "server/push_receiver.hpp"

#include <set>

#include "hat/core/clock.hpp"
#include "hat/core/error.hpp"

namespace hat {

PushReceiver::PushReceiver(const Communicator& communicator, Accept accept)
    : communicator_(&communicator), accept_(std::move(accept)) {}

void PushReceiver::expect(PushHeader header, int source_rank) {
  std::vector<float> body;
  if (!spare_bodies_.empty()) {
    body = std::move(spare_bodies_.back());
    spare_bodies_.pop_back();
  }
  body.resize(static_cast<size_t>(header.count));
  pending_.push_back({.header = std::move(header), .body = std::move(body), .request = Request(), .begin_s = now_s()});
  Pending& pending = pending_.back();
  pending.request = communicator_->start_receive(std::as_writable_bytes(std::span(pending.body)), source_rank,
                                                 static_cast<int>(MailTag::push_body));
}

bool PushReceiver::is_repeat(const PushHeader& header) {
  const std::pair number(header.generation, header.sequence_number);
  std::pair<int64_t, int64_t>& newest = newest_[header.worker];
  if (number <= newest) return true;
  if (header.sequence_number > newest.second + 1) {
    throw Error(fmt::format("push {} of worker {} was lost: its push {}, of step {}, is here", newest.second + 1,
                            header.worker, header.sequence_number, header.step));
  }
  newest = number;
  return false;
}

// A small body may be there before a larger one that was sent first: it waits, since a worker's newest number is what
// tells repeats.
bool PushReceiver::progress() {
  bool any = false;
  std::set<int64_t> held_back;  // workers with a body under way
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    const int64_t worker = pending->header.worker;
    if (held_back.contains(worker) || !pending->request.test()) {
      held_back.insert(worker);
      ++pending;
      continue;
    }
    any = true;
    if (is_repeat(pending->header)) {
      ++repeats_dropped_;
    } else {
      accept_(pending->header, pending->body, now_s() - pending->begin_s);
    }
    spare_bodies_.push_back(std::move(pending->body));
    pending = pending_.erase(pending);
  }
  return any;
}

}  // namespace hat
